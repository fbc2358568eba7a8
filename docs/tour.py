# %% [markdown]
# # A tour on one drawn image
#
# The loss, its maps, a panel and the boundary metrics, on one image that is drawn here. The figures and values below
# were computed when this page was built. One image shows what the tools do; [quality.md](quality.md) shows what the
# loss gains on real data.

# %% [markdown]
# ## An image and its labels
#
# A sky, a hill, a disk and a thin pole, from a noisy camera out of focus. The column at the left is void.

# %%
import torch
from torch import nn
from torch.nn import functional as F

from edgeloss import EdgeAwareLoss, diagnose
from edgeloss.metrics import boundary_f1, boundary_iou, trimap_iou
from edgeloss.viz import panel

torch.manual_seed(0)
names = ["sky", "hill", "disk", "pole"]
y, x = torch.meshgrid(torch.arange(96), torch.arange(128), indexing="ij")
labels = torch.zeros(1, 96, 128, dtype=torch.long)  # [B, H, W]
labels[0, y > 64 + 6 * torch.sin(x / 12)] = 1
labels[0, (x - 44) ** 2 + (y - 44) ** 2 < 22**2] = 2
labels[0, ((x - 96).abs() <= 1) & (y > 14) & (y < 88)] = 3
labels[:, :, :6] = 255

colors = torch.tensor([[0.62, 0.74, 0.86], [0.42, 0.55, 0.36], [0.80, 0.52, 0.36], [0.45, 0.45, 0.48]])
sharp = colors[labels.where(labels != 255, 0)].movedim(-1, 1)  # [B, 3, H, W]
blurred = F.avg_pool2d(F.pad(sharp, [2] * 4, mode="replicate"), 5, stride=1)
images = (blurred + 0.06 * torch.randn(1, 3, 96, 128)).clamp(0, 1)

# %% [markdown]
# ## Two short trainings
#
# The same small network, from the same initial weights, for 60 steps with each loss.


# %%
def train(criterion: nn.Module) -> torch.Tensor:
    """Train a network on the image, and return its logits [B, C, H, W]."""
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 1)
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for _ in range(60):
        loss = criterion(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network(images).detach()


criterion = EdgeAwareLoss(ignore_index=255)
logits = {
    "cross-entropy": train(nn.CrossEntropyLoss(ignore_index=255)),
    "EdgeAwareLoss": train(criterion),
}

# %% [markdown]
# ## What the loss has learned about the data
#
# It gives the edges of rare classes more weight, and has lowered that of the edge terms as the edges were learned.

# %%
weights = criterion.current_edge_class_weight.tolist()
print("class weights at edges:", {name: round(weight, 2) for name, weight in zip(names, weights, strict=True)})
print(f"weight of the edge terms in the next step: {criterion.current_edge_weight:.3f}")

# %% [markdown]
# ## Terms and maps
#
# `return_terms=True` returns the parts of the loss, and `return_maps=True` each of them per pixel.

# %%
criterion.eval()
loss, terms = criterion(logits["EdgeAwareLoss"], labels, return_terms=True)
print({name: round(float(value), 4) for name, value in terms.items()})

loss, maps = criterion(logits["EdgeAwareLoss"], labels, return_maps=True)
worst = maps.edge.flatten().argmax()
print("pixels at edges:", int(maps.edge_mask.sum()), "of", maps.edge_mask.numel())
print("the largest edge loss is at row, column", divmod(int(worst), 128))

# %% [markdown]
# ## Panels
#
# Truth, prediction, errors, the terms and the gradient, all of the same loss. First the network that was trained with
# cross-entropy, then the one that was trained with `EdgeAwareLoss`.

# %%
panel(logits["cross-entropy"], labels, image=images, criterion=criterion, class_names=names, title="cross-entropy")

# %%
panel(logits["EdgeAwareLoss"], labels, image=images, criterion=criterion, class_names=names, title="EdgeAwareLoss")

# %% [markdown]
# ## Metrics
#
# Three metrics of the pixels near borders. [metrics.md](metrics.md) has their definitions, and classes that score whole
# data sets.

# %%
for name, output in logits.items():
    f1 = boundary_f1(output, labels, 4, ignore_index=255, radius=1)
    band = boundary_iou(output, labels, 4, ignore_index=255)
    near = trimap_iou(output, labels, 4, ignore_index=255, radius=3)
    print(f"{name:15} boundary F1 (1 px) {f1:.1%}   Boundary IoU {band:.1%}   trimap IoU (3 px) {near:.1%}")

# %% [markdown]
# ## When something is not finite
#
# `diagnose` runs any loss on the logits and the labels, and reports what is wrong with them and where. Here one logit
# is nan.

# %%
broken = logits["EdgeAwareLoss"].clone()
broken[0, 2, 40, 60] = torch.nan
print(diagnose(criterion, broken, labels))
