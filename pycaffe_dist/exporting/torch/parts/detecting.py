"""Detection."""

import torch


def decode_boxes(numbers, priors, code, variances):
    """Return the boxes (…, 4) that predictions mean for priors (P, 4)."""
    if variances is not None:
        numbers = numbers * variances
    low, high = priors[:, :2], priors[:, 2:]
    size = high - low
    if code == "CENTER_SIZE":
        center = numbers[..., :2] * size + (low + high) * 0.5
        half = numbers[..., 2:].exp() * size * 0.5
        return torch.cat([center - half, center + half], -1)
    if code == "CORNER_SIZE":
        numbers = numbers * torch.cat([size, size], -1)
    return priors + numbers


def overlaps_of(boxes, others):
    """Return the intersections over unions (n, m) of boxes (n, 4) and others (m, 4)."""
    areas = [(each[:, 2:] - each[:, :2]).clamp(min=0).prod(1) for each in (boxes, others)]
    low = torch.maximum(boxes[:, None, :2], others[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    return shared / (areas[0][:, None] + areas[1] - shared)


def suppress(boxes, threshold):
    """Return the places of boxes (n, 4), the best first, that overlap no better one too much."""
    # In parts, which take less memory than all pairs.
    parts = [overlaps_of(part, boxes) > threshold for part in boxes.split(256)]
    close = torch.cat(parts).cpu()
    kept, open_ = [], torch.ones(len(boxes), dtype=torch.bool)
    for place in range(len(boxes)):
        if open_[place]:
            kept.append(place)
            open_ &= ~close[place]
    return torch.tensor(kept, dtype=torch.long)


def detection_output(
    location, confidence, priors, classes, background, code, encoded, shared, limits
):
    """Return detections (1, 1, K, 7): image, class, score, x1, y1, x2, y2.

    ``limits`` are the least score, the candidates of a class, their overlap, and the detections of
    an image; -1 stands for all.
    """
    least, candidates, threshold, most = limits
    boxes, variances = priors.reshape(2, -1, 4)
    count, images = len(boxes), len(location)
    numbers = location.reshape(images, count, 1 if shared else classes, 4).transpose(1, 2)
    decoded = decode_boxes(numbers, boxes, code, None if encoded else variances)
    scores = confidence.reshape(images, count, classes)
    rows = []
    for image in range(images):
        found = []
        for label in range(classes):
            own = scores[image, :, label]
            places = (own > least).nonzero()[:, 0]
            if label == background or not len(places):
                continue
            order = own[places].argsort(descending=True, stable=True)
            places = places[order][: candidates if candidates >= 0 else None]
            corners = decoded[image, 0 if shared else label, places]
            kept = suppress(corners, threshold)
            head = torch.tensor([image, label]).to(own).expand(len(kept), 2)
            found.append(torch.cat([head, own[places[kept]][:, None], corners[kept]], 1))
        joined = torch.cat(found) if found else location.new_zeros(0, 7)
        if 0 <= most < len(joined):
            best = joined[:, 2].argsort(descending=True, stable=True)[:most]
            joined = joined[best.sort().values]
        rows.append(joined)
    result = torch.cat(rows)
    if not len(result):
        result = location.new_full((images, 7), -1)
        result[:, 0] = torch.arange(images)
    return result[None, None]
