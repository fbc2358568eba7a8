"""From what a user passes to checked tensors; error messages say what is expected, and how to fix the input.

A check raises TypeError for an argument of the wrong type or kind, and ValueError for a shape, device or value that
does not fit. Under torch.compile a condition on values becomes an assertion of the graph, a RuntimeError.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard

import torch
from torch import Tensor

from edgeloss._checks import hints
from edgeloss._checks.options import MOST_WEIGHT, Options, Validate, is_number, radius_per_axis, spacing_per_axis

LEAST_NORMALIZER, MOST_NORMALIZER = 1e-20, 1e30  # so that a weight over it stays within float32
BALANCED: Literal["balanced"] = "balanced"  # an edge_class_weight that comes from the edge pixels of the batch
LABEL_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)


class Given(NamedTuple):
    """What a user passes to a call of the loss besides logits, target and options, not checked.

    Attributes:
        weight: class weights [C] of the cross-entropy, of a multilabel call also [C, 2].
        edge_class_weight: class weights of the edge terms, as ``weight``; or ``"balanced"``.
        pixel_weight: [B, *S], of a multilabel call also [B, C, *S].
        distance: as the target.
        normalizer: W and n of each class, or denominators (W, E).
    """

    weight: Tensor | None = None
    edge_class_weight: Tensor | str | None = None
    pixel_weight: Tensor | None = None
    distance: Tensor | None = None
    normalizer: tuple[float | Tensor, float | Tensor] | None = None


class Inputs(NamedTuple):
    """The checked arguments of a call of the loss; :func:`check_inputs` makes them.

    A multilabel call is one of B · C binary images, ordered as [B, C]: image b has the class weights of class b % C.

    Attributes:
        logits: [B, C, *S'] of any floating dtype, C ≥ 1; S' may be of lower resolution than S.
        target: [B, *S] of any dtype of labels.
        weight: class weights of the cross-entropy [max(2, C)], of a multilabel call [2C].
        pixel_weight: v [B, *S], 0 on ignored pixels.
        edge_class_weight: u of each class, as ``weight``; None for ones, and where ``is_balanced``.
        is_balanced: whether u comes from the edge pixels of each class, n.
        distance: a user-supplied field d [B, *S].
        normalizer: user-supplied W, 0-d, and n of each class, as ``weight``, or E, 0-d; float64 where there is.
        multilabel_classes: C of a multilabel call, None of others.
        ignore_index: label of pixels to ignore; None for none.
        radius: of the neighborhood, one per axis.
        spacing: size of a pixel, one per axis.
    """

    logits: Tensor
    target: Tensor
    weight: Tensor | None
    pixel_weight: Tensor | None
    edge_class_weight: Tensor | None
    is_balanced: bool
    distance: Tensor | None
    normalizer: tuple[Tensor, Tensor] | None
    multilabel_classes: int | None
    ignore_index: int | None
    radius: list[int]
    spacing: list[float]

    @property
    def tables(self) -> int:
        """How many classes have weights of their own for labels 0 and 1."""
        return self.multilabel_classes or 1

    def labels(self) -> tuple[Tensor, Tensor]:
        """Return what :func:`labels` does of the target."""
        return labels(self.target, self.logits.shape[1], self.ignore_index)

    def as_given(self, values: Tensor) -> Tensor:
        """Return values per pixel in the shape of the target of the call, such as [B, C, *S] of a multilabel one."""
        return as_given(values, self.multilabel_classes)


class Call(NamedTuple):
    """A checked call of the loss, as backends read it.

    Attributes:
        inputs: the tensors.
        options: the others.
        edges: whether the edge terms are computed; they may be without a weight.
        maps: whether the terms of each pixel are computed, too.
        distances: whether d of each pixel is one of the maps.
    """

    inputs: Inputs
    options: Options
    edges: bool = True
    maps: bool = False
    distances: bool = False


def by_class(values: Tensor) -> Tensor:
    """Return [B, C, *S] as B · C images of one logit, [B · C, 1, *S]."""
    return values.flatten(0, 1).unsqueeze(1)


def as_given(values: Tensor, multilabel_classes: int | None) -> Tensor:
    """Return values of B · C images [B · C, ...] as [B, C, ...], and of a call that is not multilabel as they are."""
    classes = multilabel_classes
    return values if classes is None else values.reshape(values.shape[0] // classes, classes, *values.shape[1:])


def check_inputs(logits: Tensor, target: Tensor, options: Options, given: Given) -> Inputs:
    """Check the tensors of a call, logits [B, C, *S] and those given, except for the values of labels and distance."""
    weight, edge_class_weight, pixel_weight, distance, normalizer = map(plain, given)
    logits, target = plain(logits), plain(target)
    multilabel, validate = options.multilabel, options.validate
    check_logits(logits, target)
    check_target(target)
    check_pair(logits, target, upsample=options.upsample, multilabel=multilabel)
    classes, dims, dtype = logits.shape[1], logits.dim() - 2, result_dtype(logits)
    w = _flat_class_weight("weight", weight, classes, logits, options)
    u, is_balanced = None, is_balance(edge_class_weight)
    if not is_balanced:
        u = _flat_class_weight("edge_class_weight", edge_class_weight, classes, logits, options)
    if pixel_weight is not None:
        if multilabel and isinstance(pixel_weight, Tensor) and pixel_weight.dim() == target.dim() - 1:
            check_map("pixel_weight", pixel_weight, target, shape=[*target.shape[:1], *target.shape[2:]])
            pixel_weight = pixel_weight.unsqueeze(1).expand_as(target)
        check_map("pixel_weight", pixel_weight, target)
        _, valid = labels(target, 1 if multilabel else classes, options.ignore_index)
        pixel_weight = torch.where(valid, pixel_weight.detach(), 0.0)
        if is_checked(pixel_weight, validate):
            check_non_negative("pixel_weight", pixel_weight, most=MOST_WEIGHT)
        pixel_weight = pixel_weight.to(dtype)
    if distance is not None:
        if options.decay is None:
            raise ValueError("distance: expected decay with it, but got decay=None; pass the decay length")
        check_map("distance", distance, target)
        distance = distance.detach()
    if multilabel:
        logits, target = by_class(logits), target.flatten(0, 1)
        pixel_weight, distance = (None if x is None else x.flatten(0, 1) for x in (pixel_weight, distance))
    return Inputs(
        logits,
        target,
        w,
        pixel_weight,
        u,
        is_balanced,
        distance,
        _normalizer_tensors(normalizer, classes, logits.device, options, is_balanced=is_balanced),
        classes if multilabel else None,
        options.ignore_index,
        radius_per_axis(options.radius, dims),
        spacing_per_axis(options.spacing, dims),
    )


def plain(value: Any) -> Any:  # noqa: ANN401
    """Return a tensor of a subclass that only adds to a tensor as an ordinary one, and other values as they are.

    Results are then ordinary tensors too, which a checkpoint can hold without the library of the subclass.
    """
    kind = type(value)
    if kind is Tensor or not isinstance(value, Tensor) or kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return value
    return value.as_subclass(Tensor)


def labels(target: Tensor, classes: int, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return the labels as int64 and the mask of valid pixels, [B, *S] each."""
    y = target.long()
    valid = (y >= 0) & (y < max(2, classes))
    return y, valid if ignore_index is None else valid & (y != ignore_index)


def result_dtype(logits: Tensor) -> torch.dtype:
    """Return float64 for float64 logits, and float32 for all others."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 where the device has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


# ----------------------------------------------------------------------------------------------------------- the checks


def may_read(values: Tensor, validate: Validate) -> bool:
    """Return whether the host may read the values.

    Those of CUDA tensors with "sync" only, since it waits for them, and not under torch.compile, where a check becomes
    an assertion of the graph: one that fails on a CUDA device would end the process.
    """
    return not values.is_cuda or (validate == "sync" and not torch.compiler.is_compiling())


def is_checked(values: Tensor, validate: Validate) -> bool:
    """Return whether the values of a tensor are checked."""
    return validate != "never" and may_read(values, validate)


def check_weight(
    weight: Tensor, validate: Validate = "sync", *, name: str = "weight", multilabel: bool = False
) -> None:
    """Check that class weights are a floating tensor [C], and finite and ≥ 0 where they may be read.

    Those of a multilabel loss may also be [C, 2].
    """
    check_tensor(name, weight, "a tensor [C] of class weights")
    if weight.dim() not in ((1, 2) if multilabel else (1,)) or not weight.is_floating_point():
        shapes = "[C] or [C, 2]" if multilabel else "[C]"
        hint = "" if weight.is_floating_point() else f"; pass {name}.float()"
        raise ValueError(
            f"{name}: expected a floating tensor {shapes} of class weights, but got {describe(weight)}{hint}"
        )
    check_values(name, weight)
    if may_read(weight, validate):
        check_non_negative(name, weight, most=MOST_WEIGHT)


def is_balance(edge_class_weight: object) -> TypeGuard[str]:
    """Return whether class weights of the edge terms are those of the batch; raise for other words."""
    if isinstance(edge_class_weight, str) and edge_class_weight != BALANCED:
        expected = f"edge_class_weight: expected a tensor, {BALANCED!r} or None"
        raise ValueError(f"{expected}, but got {edge_class_weight!r}")
    return isinstance(edge_class_weight, str)


def renamed_balance(value: Tensor | str | None, stacklevel: int = 4) -> Tensor | str | None:
    """Return an ``edge_class_weight``, with a warning for its name in version 0.3."""
    if isinstance(value, str) and value == "running":
        message = f"edge_class_weight='running': renamed in version 0.4, which counts nothing; pass {BALANCED!r}"
        warnings.warn(message, FutureWarning, stacklevel=stacklevel)
        return BALANCED
    return value


def check_logits(logits: Tensor, target: object = None) -> None:
    """Check type and shape of the logits."""
    check_tensor("logits", logits, "a tensor")
    if logits.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        hint = "; pass the logits first, then the target" if logits.dtype in LABEL_DTYPES else ""
        raise TypeError(f"logits: expected float16, bfloat16, float32 or float64, but got {describe(logits)}{hint}")
    if logits.dim() not in (4, 5) or logits.shape[1] < 1:
        hint = "; for a single image pass logits.unsqueeze(0)" if logits.dim() == 3 else ""
        if hint and isinstance(target, Tensor) and target.shape == logits.shape:
            hint = "; for one logit per pixel pass logits.unsqueeze(1)"
        raise ValueError(f"logits: expected [B, C, H, W] or [B, C, D, H, W], but got {describe(logits)}{hint}")


def check_tensor(name: str, value: object, wanted: str) -> None:
    """Check that a value is a tensor, and an ordinary one."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected {wanted}, but got {hints.not_a_tensor(name, value)}")
    check_kind(name, value)


def check_kind(name: str, tensor: Tensor) -> None:
    """Check that a tensor is an ordinary one: dense, and of a batch of its own."""
    expected = f"{name}: expected a dense tensor, but got a"
    if tensor.is_nested:
        raise TypeError(f"{expected} nested one; pad the images to one size: {name}.to_padded_tensor(0)")
    if tensor.layout != torch.strided:
        raise TypeError(f"{expected} {str(tensor.layout)[6:].strip('_')} one; pass {name}.to_dense()")
    if torch._C._are_functorch_transforms_active():
        inner = tensor
        while torch._C._functorch.is_gradtrackingtensor(inner):
            inner = torch._C._functorch.get_unwrapped(inner)
        if torch._C._functorch.is_batchedtensor(inner):
            raise RuntimeError(f"{name}: expected a call without vmap; pass a batch [B, ...] directly")


def check_values(name: str, tensor: Tensor) -> None:
    """Check that a tensor has values."""
    if tensor.is_meta:
        raise TypeError(f"{name}: expected a tensor with values, but got one on the meta device; move it to a device")


def label_maps(targets: Iterable[Tensor], *, multilabel: bool = False, classes: int | None = None) -> Iterator[Tensor]:
    """Iterate over label maps, with a check of each."""
    if isinstance(targets, Tensor):
        raise TypeError(f"targets: expected several tensors, but got one, {describe(targets)}; pass [targets]")
    if isinstance(targets, str) or not isinstance(targets, Iterable):
        got = hints.not_a_tensor("targets", targets)
        raise TypeError(f"targets: expected an iterable of tensors [B, *S], but got {got}")
    for target in targets:
        if isinstance(target, (tuple, list)) and any(isinstance(part, Tensor) for part in target):
            raise TypeError(
                f"targets: expected tensors of labels, but got a {type(target).__name__}; for batches of a loader pass"
                " (labels for _, labels in loader)"
            )
        check_label_map(target, multilabel=multilabel, classes=classes)
        yield target


def check_label_map(target: Tensor, *, multilabel: bool = False, classes: int | None = None) -> None:
    """Check that labels are [B, H, W] or [B, D, H, W], of a multilabel call [B, C, H, W] or [B, C, D, H, W]."""
    check_target(target)
    check_values("target", target)
    dims = target.dim() - multilabel
    if dims in (3, 4) and (not multilabel or classes in (None, target.shape[1])):
        return
    hint = {2: "; for a single image pass target.unsqueeze(0)"}
    if dims == 5 and target.shape[1] == 1:
        hint[5] = "; for labels with a channel pass target.squeeze(1)"
    elif dims == 5:
        hint[5] = "; for one-hot labels pass edgeloss.adapters.as_labels(target, logits), or multilabel=True if classes"
        hint[5] += " may overlap"
    lead = f"B, {classes or 'C'}" if multilabel else "B"
    expected = f"[{lead}, H, W] or [{lead}, D, H, W]"
    raise ValueError(f"target: expected {expected}, but got {list(target.shape)}{hint.get(dims, '')}")


def check_target(target: Tensor, *, name: str = "target") -> None:
    """Check that the target holds class indices."""
    check_tensor(name, target, "a tensor of class indices")
    if target.requires_grad:
        raise ValueError(
            f"{name}: expected class indices, which have no gradient, but got {describe(target)} that requires grad;"
            f" pass {name}.detach() as class indices"
        )
    if target.dtype not in LABEL_DTYPES:
        names = ", ".join(map(dtype_name, LABEL_DTYPES))
        hint = f"{name}.long()"
        if target.is_floating_point() and target.dim() in (4, 5):
            hint += " for labels stored as floats, with multilabel=True where each class has its own"
            hint += f", or edgeloss.adapters.as_labels({name}, logits) for one-hot ones; for soft labels see the recipe"
            hint += " in docs/training.md"
            if target.shape[1] == 1:
                hint = f"{name}.squeeze(1).long()"
        raise TypeError(f"{name}: expected class indices of dtype {names}, but got {describe(target)}; pass {hint}")


def check_pair(
    logits: Tensor, target: Tensor, *, upsample: bool = False, multilabel: bool = False, name: str = "target"
) -> None:
    """Check that the shapes and devices of logits and target match."""
    check_device(name, target, logits)
    if target.shape == logits.shape[: 1 + multilabel] + logits.shape[2:]:
        return
    lead, size, got = list(logits.shape[: 1 + multilabel]), list(logits.shape[2:]), list(target.shape)
    expected, high = [*lead, *size], got[len(lead) :]
    fits_but_for_size = len(got) == len(expected) and got[: len(lead)] == lead
    # No axis may shrink, and none of the logits be empty unless the labels are.
    if upsample and fits_but_for_size and (0 not in size or 0 in high) and all(map(operator.le, size, high)):
        return
    hint = hints.of_shapes(name, logits.shape, target.shape, upsample=upsample, multilabel=multilabel)
    wanted = str(expected)
    if upsample:
        wanted = f"[{', '.join(map(str, lead))}, *size] of at least the logits' resolution {size}"
    raise ValueError(f"{name}: expected {wanted} for logits {list(logits.shape)}, but got {got}{hint}")


def check_labels(y: Tensor, classes: int | None, ignore_index: int | None = None, *, name: str = "target") -> None:
    """Check that every label [B, *S] int64 is a class or ignored; waits for the device.

    ``classes`` is the number of logits per pixel; 1 means labels 0 and 1, None any label ≥ 0.
    """
    out_of_range = y < 0 if classes is None else (y < 0) | (y >= max(2, classes))
    wrong = out_of_range if ignore_index is None else (y != ignore_index) & out_of_range
    if _holds(~wrong.any(), f"{name}: expected labels in range"):
        return
    expected = "≥ 0" if classes is None else f"0 to {classes - 1}"
    if classes == 1:
        expected = "0 or 1 (one logit per pixel is binary)"
    if ignore_index is not None:
        expected += f", or ignore_index={ignore_index}"
    first = wrong.nonzero()[0].tolist()
    value = int(y[tuple(first)])
    count = int((y == value).sum())
    others = int(wrong.sum()) - count
    hint = f", and other labels out of range at {_pixels(others)} more" if others else ""
    if value == 255 and not others and classes is not None and classes <= 2:  # a mask of 0 and 255
        hint = f"; if 255 is the foreground pass ({name} == 255).long(): ignore_index=255 would ignore all of it"
    raise ValueError(f"{name}: expected labels {expected}, but got {value} at {_pixels(count)}, first at {first}{hint}")


def check_labels_of(inputs: Inputs, options: Options) -> None:
    """Check the labels of a call; waits for the device."""
    check_labels(inputs.as_given(inputs.target).long(), inputs.logits.shape[1], options.ignore_index)


def _flat_class_weight(name: str, weight: Tensor | None, classes: int, like: Tensor, options: Options) -> Tensor | None:
    """Check class weights [C] or [C, 2], and return them in the form of :class:`Inputs`, for the logits ``like``."""
    if weight is None:
        return None
    check_weight(weight, options.validate, name=name, multilabel=options.multilabel)
    count = classes if options.multilabel else max(2, classes)
    if weight.shape[0] != count or (weight.dim() == 2 and weight.shape[1] != 2):
        expected = f"{count} class weights{' (labels 0 and 1 of one logit)' if classes == 1 else ''}"
        if options.multilabel:
            expected = f"[{classes}], or [{classes}, 2] for labels 0 and 1 of each class"
        got = list(weight.shape) if options.multilabel else weight.shape[0]
        raise ValueError(f"{name}: expected {expected}, but got {got}")
    check_device(name, weight, like, f"; move the loss with criterion.to({str(like.device)!r})")
    if options.multilabel and weight.dim() == 1:  # the same for both labels of a class
        weight = weight.unsqueeze(1).expand(-1, 2)
    return weight.detach().flatten().to(result_dtype(like))


def check_map(
    name: str, values: Tensor, target: Tensor, shape: Sequence[int] | None = None, *, is_mask: bool = False
) -> None:
    """Check type, shape and device of a floating map, or of a mask; the shape is by default that of the target."""
    kind = "bool" if is_mask else "floating"
    check_tensor(name, values, f"a {kind} tensor")
    if not (values.dtype == torch.bool if is_mask else values.is_floating_point()):
        cure = f"{name}.bool()" if is_mask else f"{name}.float()"
        raise TypeError(f"{name}: expected a {kind} tensor, but got {describe(values)}; pass {cure}")
    expected = list(target.shape if shape is None else shape)
    if list(values.shape) != expected:
        hint = f"; pass {name}.squeeze(1)" if list(values.shape) == [*expected[:1], 1, *expected[1:]] else ""
        raise ValueError(f"{name}: expected {expected}, but got {list(values.shape)}{hint}")
    check_device(name, values, target)


def check_device(name: str, tensor: Tensor, like: Tensor, hint: str = "") -> None:
    """Check that a tensor is on the device of the logits, which is that of another one."""
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected device {like.device}, as the logits, but got {tensor.device}{hint}")


def _holds(condition: Tensor, message: str) -> bool:
    """Return whether a condition on values holds, 0-d, which waits for the device; in a graph, assert that it does."""
    if torch.compiler.is_compiling():  # to read it would break the graph
        torch._assert_async(condition, message)
        return True
    return bool(condition)


def check_that(condition: Tensor, message: str) -> None:
    """Check a condition on values, 0-d; waits for the device."""
    if not _holds(condition, message):
        raise ValueError(message)


def _normalizer_tensors(
    normalizer: Any,  # noqa: ANN401
    classes: int,
    device: torch.device,
    options: Options,
    *,
    is_balanced: bool,
) -> tuple[Tensor, Tensor] | None:
    """Return user-supplied W and n or E on the device, without waiting for it, n padded to all classes; see Inputs."""
    if normalizer is None:
        return None
    got = "" if torch.compiler.is_compiling() else f", but got {normalizer!r}"  # compilers have no text of tensors
    is_pair = isinstance(normalizer, Sequence) and len(normalizer) == 2
    if not is_pair or not all(is_number(value) or isinstance(value, Tensor) for value in normalizer):
        raise TypeError(f"normalizer: expected (W, n), as functional.normalizers returns it{got}")
    w, n = (_normalizer_tensor(plain(value), device, options.validate, got) for value in normalizer)
    if w.dim():
        raise ValueError(f"normalizer: expected W as a number or a 0-d tensor, but got {describe(w)}")
    if not n.dim():
        if is_balanced and options.edge_weight:
            raise ValueError(
                f"normalizer: expected (W, n) with the edge pixels n of each class for edge_class_weight={BALANCED!r}"
                f"{got}; pass normalizers(target, num_classes)"
            )
        return w, n
    shape = [classes, 2] if options.multilabel else [max(2, classes)]
    if n.dim() != len(shape) or n.shape[0] > shape[0] or list(n.shape[1:]) != shape[1:]:
        raise ValueError(f"normalizer: expected n of shape {shape}, but got {list(n.shape)}")
    padded = n.new_zeros(shape)
    padded[: n.shape[0]] = n
    return w, padded.flatten()


def _normalizer_tensor(value: float | Tensor, device: torch.device, validate: Validate, got: str) -> Tensor:
    if isinstance(value, Tensor):
        check_kind("normalizer", value)
        check_values("normalizer", value)
        if value.is_complex():
            raise ValueError(f"normalizer: expected real tensors, but got {describe(value)}")
        if may_read(value, validate):
            fits = ((value >= LEAST_NORMALIZER) & (value <= MOST_NORMALIZER) | (value == 0)).all()
            if not _holds(fits, "normalizer: expected 0, or finite numbers in [1e-20, 1e30]"):
                _refuse_normalizer(bool(((value >= 0) & (value < math.inf)).all()), got)
        return value.detach().to(device, widest(device), non_blocking=True)
    if not (value == 0 or LEAST_NORMALIZER <= value <= MOST_NORMALIZER):
        _refuse_normalizer(0 <= value < math.inf, got)
    return torch.full((), float(value), dtype=widest(device), device=device)


def _refuse_normalizer(is_finite: bool, got: str) -> None:
    if not is_finite:
        raise ValueError(f"normalizer: expected finite numbers ≥ 0{got}")
    raise ValueError(f"normalizer: expected 0, or numbers in [1e-20, 1e30]{got}; scale all weights")


def check_non_negative(name: str, values: Tensor, where: Tensor | None = None, *, most: float = math.inf) -> None:
    """Check that values are finite and ≥ 0, and not above a bound (where the mask is set); waits for the device."""
    wrong = ~((values >= 0) & (values < math.inf) & (values <= most))  # also nan
    if where is not None:
        wrong &= where
    expected = f"{name}: expected finite values ≥ 0"
    if not _holds(~wrong.any(), expected):
        first = wrong.nonzero()[0].tolist()
        value = values[tuple(first)].item()
        if 0 <= value < math.inf:
            expected = f"{name}: expected values ≤ {most:g}"
        raise ValueError(f"{expected}, but got {value} at {first} ({int(wrong.sum())} such values)")


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, without "torch."."""
    return str(dtype).removeprefix("torch.")


def describe(tensor: Tensor) -> str:
    """Return dtype and shape for an error message."""
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"


def _pixels(count: int) -> str:
    return f"{count} pixel{'' if count == 1 else 's'}"
