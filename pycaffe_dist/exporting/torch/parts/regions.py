"""Values of a map (N, C, H, W) in boxes (R, 5): rows of image, x1, y1, x2, y2."""

import torch


def rounded(x):
    """Round halves away from zero, as C does."""
    return x.sign() * (x.abs() + 0.5).floor()


def bins(low, size, count, side):
    """Return the first cells of bins (R, count) along an axis, and the cells after their last."""
    step, places = size[:, None] / count, torch.arange(count).to(low)
    begin = (places * step + low[:, None]).floor()
    end = ((places + 1) * step + low[:, None]).ceil()
    return [each.clamp(0, side).long().tolist() for each in (begin, end)]


def images_of(boxes):
    """Return the number of each box's image."""
    return boxes[:, 0].long().tolist()


def roi_pool(x, boxes, scale, rows, columns):
    """Return the maximum of each bin of each box; 0 for a bin outside of the map."""
    boxes = boxes.detach().reshape(-1, 5)
    corners = rounded(boxes[:, 1:] * scale)
    sizes = (corners[:, 2:] - corners[:, :2] + 1).clamp(min=1)
    across = zip(*bins(corners[:, 0], sizes[:, 0], columns, x.shape[3]))
    down = zip(*bins(corners[:, 1], sizes[:, 1], rows, x.shape[2]))
    found = []
    for image, own_columns, own_rows in zip(images_of(boxes), across, down):
        # The columns first: of equal values the first in the map gets the gradient.
        strips = torch.stack([largest(x[image], 2, *bounds) for bounds in zip(*own_columns)], 2)
        found.append(torch.stack([largest(strips, 1, *bounds) for bounds in zip(*own_rows)], 1))
    return torch.stack(found)


def largest(x, axis, begin, end):
    """Return the maxima of places from ``begin`` to before ``end``, 0 if there are none."""
    if begin >= end:
        return torch.zeros_like(x.select(axis, 0))
    return x.narrow(axis, begin, end - begin).max(axis).values


def psroi_pool(x, boxes, scale, depth, count):
    """Return the mean of each bin of each box, each bin from channels of its own."""
    boxes = boxes.detach().reshape(-1, 5)
    corners = rounded(boxes[:, 1:])
    low, high = corners[:, :2] * scale, (corners[:, 2:] + 1) * scale
    sizes = (high - low).clamp(min=0.1)
    columns, rows = (
        marks(*bins(low[:, axis], sizes[:, axis], count, side), side).to(x)
        for axis, side in ((0, x.shape[3]), (1, x.shape[2]))
    )
    parts = x.unflatten(1, (depth, count, count))
    pairs = zip(images_of(boxes), rows, columns)
    sums = [torch.einsum("ph,qw,dpqhw->dpq", p, q, parts[image]) for image, p, q in pairs]
    cells = rows.sum(2)[:, :, None] * columns.sum(2)[:, None]
    return torch.stack(sums) / cells[:, None].clamp(min=1)


def marks(begin, end, side):
    """Return which cells (R, bins, side) are in each bin."""
    begin, end = torch.tensor(begin)[:, :, None], torch.tensor(end)[:, :, None]
    cells = torch.arange(side)
    return (cells >= begin) & (cells < end)


def roi_align(x, boxes, scale, pad_ratio, rows, columns):
    """Return values between the cells, at points of each box and its borders; 0 outside."""
    boxes = boxes.detach().reshape(-1, 5)
    low, high = boxes[:, 1:3], boxes[:, 3:]
    pad = (high - low + 1) * pad_ratio
    start, end = (low - pad) * scale - 0.5, (high + pad) * scale - 0.5
    axes = [
        points(start[:, axis], (end - start)[:, axis], count, side)
        for axis, count, side in ((0, columns, x.shape[3]), (1, rows, x.shape[2]))
    ]
    (left, right, across, seen), (top, bottom, down, visible) = axes
    image = boxes[:, 0].long()[:, None, None]
    across, down = across[:, None, :, None], down[:, :, None, None]
    sums = 0
    for row, share in ((top, 1 - down), (bottom, down)):
        for column, own in ((left, 1 - across), (right, across)):
            # Indices in front of and behind the channels make these the last axis.
            sums = sums + x[image, :, row[:, :, None], column[:, None]] * share * own
    inside = visible[:, :, None] & seen[:, None] & (end > start).all(1)[:, None, None]
    return torch.where(inside[..., None], sums, 0).permute(0, 3, 1, 2)


def points(start, size, count, side):
    """Return count + 1 points (R, …): cells, next cells, their shares, whether they are seen."""
    place = start[:, None] + torch.arange(count + 1).to(start) * (size / count)[:, None]
    seen = (place >= -0.5) & (place <= side - 0.5)
    place = place.clamp(0, side - 1)
    cell = place.floor().long()
    return cell, (cell + 1).clamp(max=side - 1), place - cell, seen
