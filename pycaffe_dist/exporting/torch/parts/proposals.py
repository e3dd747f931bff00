"""Boxes that the cells of a map predict."""

import torch

from pycaffe_dist.exporting.torch.parts.detecting import suppress


def best_boxes(edges, scores, most, room, threshold):
    """Return images (R,) and places (R,) of the boxes (N, M, 4) to keep, by image, the best first.

    Of each image, the ``most`` best scores (N, M) above -inf are considered, and ``room`` boxes are
    kept; None stands for all.
    """
    images, places = [], []
    for image, own in enumerate(scores.detach()):
        order = own.argsort(descending=True, stable=True)
        order = order[own[order] > -torch.inf][:most]
        chosen = order[suppress(edges[image, order].detach(), threshold).to(order)][:room]
        images.append(torch.full_like(chosen, image))
        places.append(chosen)
    return torch.cat(images), torch.cat(places)


def cells(x, stride, begin=0.0):
    """Return x and y (H, W, 2) of the cells of a map, in pixels."""
    rows, columns = ((torch.arange(side).to(x) + begin) * stride for side in x.shape[2:])
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)


def proposals(scores, moves, images, anchors, stride, least, most, room, threshold):
    """Return the best boxes (R, 5) that anchors (A, 4) become, and their scores (R,)."""
    count, images = len(anchors), images.flatten(1)[:, None, None, None]
    low, length = anchors[:, :2], anchors[:, 2:] - anchors[:, :2] + 1
    numbers = moves.unflatten(1, (count, 4)).permute(0, 3, 4, 1, 2)
    center = cells(scores, stride)[:, :, None] + low + 0.5 * length + numbers[..., :2] * length
    half = 0.5 * length * numbers[..., 2:].exp()
    last = images[..., [1, 0]] - 1
    corners = [torch.minimum(each, last).clamp(min=0) for each in (center - half, center + half)]
    fits = (corners[1] - corners[0] + 1 >= least * images[..., [-1, 2]]).all(-1)
    scores = torch.where(fits, scores[:, count:].permute(0, 2, 3, 1), 0).flatten(1)
    boxes = torch.cat(corners, -1).flatten(1, 3)
    # Boxes include the pixels of both borders.
    edges = boxes + boxes.new_tensor([0, 0, 1, 1])
    at = best_boxes(edges, scores, most, room, threshold)
    return torch.cat([at[0][:, None].to(boxes), boxes[at]], 1), scores[at]


def field_boxes(x, field, stride, mean, std, shift, growth):
    """Return the boxes (N, M, 4) of a map of scores and moves, and their scores (N, M)."""
    numbers = x[:, -4:].permute(0, 2, 3, 1) * x.new_tensor(std) + x.new_tensor(mean)
    field = x.new_tensor(field)
    center = numbers[..., :2].clamp(-shift, shift) * field + cells(x, stride, 0.5)
    size = numbers[..., 2:].clamp(-growth, growth).exp() * field
    low = (center - size / 2).clamp(min=0)
    limit = x.new_tensor([x.shape[3], x.shape[2]]) * stride
    edges = torch.cat([low, low + torch.minimum(size, limit - low)], -1)
    return edges.flatten(1, 2), (x[:, 1:-4].amax(1) - x[:, 0]).flatten(1)


def box_output(maps, fields, moves, score, side, most, room, threshold):
    """Return the best boxes (R, 5, 1, 1) of maps, and the same with their scores (R, 6, 1, 1).

    ``score`` and ``side`` are the least ones; ``moves`` are the last arguments of `field_boxes`.
    """
    found = [field_boxes(x, *own, *moves) for x, own in zip(maps, fields)]
    edges, scores = (torch.cat(each, 1) for each in zip(*found))
    stays = (scores >= score) & (edges[..., 2:] - edges[..., :2] >= side).all(-1)
    scores = torch.where(stays, scores, -torch.inf)
    at = best_boxes(edges, scores, most, room, threshold)
    rows = torch.cat([at[0][:, None].to(edges), edges[at], scores[at][:, None]], 1)
    boxes = rows[:, :5]
    if not len(rows):
        boxes, rows = edges.new_tensor([[0, 1, 1, 10, 10]]), edges.new_zeros(1, 6)
    return boxes[..., None, None], rows[..., None, None]
