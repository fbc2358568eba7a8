"""Fine-tune the mask decoder of a SAM of Hugging Face transformers with EdgeAwareLoss.

python examples/frameworks/sam_masks.py

Mask heads as of SAM, Mask2Former and Mask R-CNN give one logit per mask at a lower resolution, [N, 1, h, w], for masks
[N, H, W]. The model is small and starts from random weights, so that the example needs no download; replace it with
``SamModel.from_pretrained(...)`` for real work. It needs: pip install transformers
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import SamConfig, SamMaskDecoderConfig, SamModel, SamPromptEncoderConfig, SamVisionConfig

from edgeloss import EdgeAwareLoss
from edgeloss.metrics import boundary_f1
from squares import squares

SIZE = 64


def small_sam() -> SamModel:
    """Return a model for images [3, SIZE, SIZE], whose masks have a quarter of the resolution."""
    vision = SamVisionConfig(
        hidden_size=32,
        output_channels=32,
        num_pos_feats=16,  # half of output_channels
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=4,
        window_size=4,
        global_attn_indexes=[1],
        mlp_dim=64,
    )
    prompts = SamPromptEncoderConfig(hidden_size=32, image_size=SIZE, patch_size=4, mask_input_channels=4)
    decoder = SamMaskDecoderConfig(hidden_size=32, mlp_dim=64, num_attention_heads=2, iou_head_hidden_dim=32)
    return SamModel(SamConfig(vision_config=vision, prompt_encoder_config=prompts, mask_decoder_config=decoder))


def boxes_around(masks: Tensor) -> Tensor:
    """Return the boxes [N, 1, 4] around masks [N, H, W], with a margin of 3 pixels."""
    corners = [mask.nonzero() for mask in masks]
    return torch.stack([torch.cat([c.amin(0).flip(0) - 3, c.amax(0).flip(0) + 3]) for c in corners])[:, None].float()


def mask_logits(model: SamModel, images: Tensor, masks: Tensor) -> Tensor:
    """Return the logits [N, 1, h, w] of the masks in boxes, one per image."""
    output = model(pixel_values=images, input_boxes=boxes_around(masks), multimask_output=False)
    return output.pred_masks.flatten(0, 1)  # [images, boxes, 1, h, w]


def main(epochs: int = 8) -> float:
    """Fine-tune, and return the boundary F1 of masks that were not trained on."""
    torch.manual_seed(0)
    model = small_sam()
    criterion = EdgeAwareLoss(upsample=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        for images, masks in DataLoader(squares(64, SIZE), 8, shuffle=True):
            loss = criterion(mask_logits(model, images, masks), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    images, masks = squares(16, SIZE).tensors
    with torch.no_grad():
        logits = mask_logits(model.eval(), images, masks)
    large = torch.nn.functional.interpolate(logits, masks.shape[1:], mode="bilinear", align_corners=False)
    score = float(boundary_f1((large[:, 0] > 0).long(), masks, 2))
    print(f"boundary F1: {score:.3f}")
    return score


if __name__ == "__main__":
    main()
