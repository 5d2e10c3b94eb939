"""Functions of mmcv's compiled extension, computed by torchvision.

Signatures are those of the extension (``mmcv/ops/csrc``), which writes
results into tensors that the caller allocated. torchvision is imported by the
call, because ``import mmssm`` needs torch and mmengine only.
"""

import torch
from torch import Tensor


def nms(
    boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int
) -> Tensor:
    """Suppress boxes that overlap a box of higher score.

    Args:
        boxes (Tensor): Corners x1, y1, x2, y2 in pixels, shape
            ``(boxes, 4)``.
        scores (Tensor): Scores, shape ``(boxes,)``.
        iou_threshold (float): Boxes above this overlap are suppressed.
        offset (int): Added to widths and heights, 0 or 1.

    Returns:
        Tensor: Indices of the kept boxes by falling score, int64, shape
        ``(kept,)``. Boxes of equal score keep the order in which mmcv has
        them.
    """
    from torchvision.ops import nms as torchvision_nms

    # Half precision has no CPU kernel and cannot count the ranks below.
    if boxes.dtype != torch.float64:
        boxes = boxes.float()
    # A width of x2 - x1 + offset is that of a box with x2 moved by offset.
    boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    # mmcv sorts with torch.sort and torchvision with a stable sort of its
    # own: they order ties differently. Ranks have no ties.
    order = scores.sort(dim=0, descending=True)[1]
    ranks = torch.arange(
        len(order), 0, -1, dtype=boxes.dtype, device=boxes.device
    )
    return order[torchvision_nms(boxes[order], ranks, iou_threshold)]


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Lower the scores of boxes that overlap a box of higher score.

    Args:
        boxes (Tensor): Corners x1, y1, x2, y2 in pixels, shape
            ``(boxes, 4)``, on the CPU.
        scores (Tensor): Scores, shape ``(boxes,)``.
        dets (Tensor): Written: corners and new score of the kept boxes, in
            order, in its first rows. Shape ``(boxes, 5)``.
        iou_threshold (float): Boxes from this overlap on are changed
            (methods 0 and 1).
        sigma (float): Width of the Gaussian (method 2).
        min_score (float): Boxes whose score falls below it are dropped.
        method (int): 0 hard, 1 linear (factor ``1 - IoU``), 2 Gaussian
            (factor ``exp(-IoU ** 2 / sigma)``).
        offset (int): Added to widths and heights, 0 or 1.

    Returns:
        Tensor: Indices of the kept boxes, int64, shape ``(kept,)``.

    Raises:
        ValueError: The method is not 0, 1 or 2.
    """
    if method not in (0, 1, 2):
        raise ValueError(f'`method` is {method}; expected 0, 1 or 2')
    # Columns: corners, score, area. Rows from `num` on are dropped.
    sizes = boxes[:, 2:] - boxes[:, :2] + offset
    rows = torch.cat([boxes, scores[:, None], sizes.prod(1)[:, None]], dim=1)
    inds = torch.arange(len(boxes))
    num = len(boxes)
    i = 0
    while i < num:
        best = i + int(rows[i:num, 4].argmax())
        swapped = torch.tensor([best, i])
        rows[[i, best]] = rows[swapped]
        inds[[i, best]] = inds[swapped]
        dets[i] = rows[i, :5]

        rest = rows[i + 1 : num]
        top_left = torch.maximum(rows[i, :2], rest[:, :2])
        bottom_right = torch.minimum(rows[i, 2:4], rest[:, 2:4])
        overlap = (bottom_right - top_left + offset).clamp(min=0).prod(1)
        iou = overlap / (rows[i, 5] + rest[:, 5] - overlap)
        if method == 2:
            rest[:, 4] *= torch.exp(-iou * iou / sigma)
        else:
            factor = torch.zeros_like(iou) if method == 0 else 1 - iou
            rest[:, 4] *= torch.where(iou >= iou_threshold, factor, 1)

        # mmcv fills each gap with the last box: the order of equal scores
        # depends on it.
        dropped = (rows[:, 4] < min_score).tolist()
        position = i + 1
        while position < num:
            if dropped[position]:
                num -= 1
                rows[position] = rows[num]
                inds[position] = inds[num]
                dropped[position] = dropped[num]
            else:
                position += 1
        i += 1
    return inds[:num]


def _check_pool_mode(pool_mode: int) -> None:
    """Refuse max pooling, which torchvision does not have."""
    if pool_mode != 1:
        raise NotImplementedError(
            "roi_align with pool_mode='max' needs the compiled extension of "
            "mmcv; the stand-in of mmssm has pool_mode='avg' only"
        )


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which torchvision has a kernel for the tensor."""
    if tensor.dtype == torch.bfloat16 or not tensor.is_cuda:
        return torch.promote_types(tensor.dtype, torch.float32)
    return tensor.dtype


def roi_align_forward(
    input: Tensor,  # noqa: A002  (mmcv passes some arguments by name)
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Average features over the cells of regions of interest.

    Args:
        input (Tensor): Features, shape ``(batch, channels, height, width)``.
        rois (Tensor): Batch index and corners x1, y1, x2, y2 in pixels of
            the image, shape ``(rois, 5)``.
        output (Tensor): Written, shape
            ``(rois, channels, aligned_height, aligned_width)``.
        argmax_y (Tensor): Unused, for max pooling.
        argmax_x (Tensor): Unused, for max pooling.
        aligned_height (int): Cells per column.
        aligned_width (int): Cells per row.
        spatial_scale (float): Size of the features over that of the image.
        sampling_ratio (int): Samples per cell side; 0 is one per pixel.
        pool_mode (int): 1, average.
        aligned (bool): Whether regions are shifted by half a pixel.

    Raises:
        NotImplementedError: Max pooling is asked for.
    """
    from torchvision.ops import roi_align

    _check_pool_mode(pool_mode)
    dtype = _compute_dtype(input)
    output.copy_(
        roi_align(
            input.to(dtype),
            rois.to(dtype),
            (aligned_height, aligned_width),
            spatial_scale,
            sampling_ratio,
            aligned,
        )
    )


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Write the gradient of :func:`roi_align_forward` into ``grad_input``.

    Args:
        grad_output (Tensor): Gradient of the output, shape
            ``(rois, channels, aligned_height, aligned_width)``.
        rois (Tensor): As in the forward.
        argmax_y (Tensor): Unused, for max pooling.
        argmax_x (Tensor): Unused, for max pooling.
        grad_input (Tensor): Written, shape
            ``(batch, channels, height, width)``.
        aligned_height (int): Cells per column.
        aligned_width (int): Cells per row.
        spatial_scale (float): Size of the features over that of the image.
        sampling_ratio (int): Samples per cell side; 0 is one per pixel.
        pool_mode (int): 1, average.
        aligned (bool): Whether regions are shifted by half a pixel.

    Raises:
        NotImplementedError: Max pooling is asked for.
    """
    # The import registers the operator.
    import torchvision  # noqa: F401

    _check_pool_mode(pool_mode)
    dtype = _compute_dtype(grad_output)
    batch, channels, height, width = grad_input.shape
    grad_input.copy_(
        torch.ops.torchvision._roi_align_backward(
            grad_output.to(dtype),
            rois.to(dtype),
            spatial_scale,
            aligned_height,
            aligned_width,
            batch,
            channels,
            height,
            width,
            sampling_ratio,
            aligned,
        )
    )


OPERATORS = {
    'nms': nms,
    'softnms': softnms,
    'roi_align_forward': roi_align_forward,
    'roi_align_backward': roi_align_backward,
}
