"""A configuration of mmsegmentation with EdgeAwareLoss: a small U-Net with an auxiliary head, for ``mmseg_unet.py``."""

custom_imports = {"imports": ["edgeloss.integrations.mmseg"]}  # registers the loss
default_scope = "mmseg"
batch_norm = {"type": "BN"}
head = {"type": "FCNHead", "channels": 8, "num_convs": 1, "num_classes": 2, "norm_cfg": batch_norm}
model = {
    "type": "EncoderDecoder",
    "data_preprocessor": {"type": "SegDataPreProcessor", "size": (32, 32), "seg_pad_val": 255},
    "backbone": {
        "type": "UNet",
        "base_channels": 8,
        "num_stages": 3,
        "strides": (1, 1, 1),
        "enc_num_convs": (1, 1, 1),
        "dec_num_convs": (1, 1),
        "downsamples": (True, True),
        "enc_dilations": (1, 1, 1),
        "dec_dilations": (1, 1),
        "norm_cfg": batch_norm,
    },
    "decode_head": head | {"in_channels": 8, "in_index": 2, "loss_decode": {"type": "EdgeAwareLoss"}},
    "auxiliary_head": head
    | {"in_channels": 16, "in_index": 1, "loss_decode": {"type": "EdgeAwareLoss", "loss_weight": 0.4}},
    "train_cfg": {},
    "test_cfg": {"mode": "whole"},
}
