"""What each layer type needs to be timed: fields, bottoms with suitable values, and tops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Values = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Setup:
    """A layer's own fields, the values of its bottoms, and its number of tops."""

    fields: str
    bottoms: tuple[Values, ...]
    tops: int = 1


def normal(*shape: int) -> Values:
    """Return Gaussian values."""
    return lambda rng: rng.standard_normal(shape)


def uniform(*shape: int) -> Values:
    """Return values that are probabilities, far from 0 and 1."""
    return lambda rng: rng.uniform(0.1, 0.9, shape)


def labels(below: int, *shape: int) -> Values:
    """Return whole numbers from 0."""
    return lambda rng: rng.integers(0, below, shape)


def chances(*shape: int) -> Values:
    """Return rows that add up to 1."""
    return lambda rng: rng.dirichlet(np.ones(shape[1]), shape[0])


def rois(count: int, images: int = 2, height: int = 600, width: int = 1000) -> Values:
    """Return rows of image, x1, y1, x2, y2 in pixels."""

    def make(rng: np.random.Generator) -> np.ndarray:
        low = rng.uniform(0, (0.6 * width, 0.6 * height), (count, 2))
        size = rng.uniform(30, (0.4 * width, 0.4 * height), (count, 2))
        return np.column_stack([rng.integers(0, images, count), low, low + size])

    return make


def unit_boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return boxes x1, y1, x2, y2 within 0 and 1."""
    low = rng.uniform(0, 0.6, (count, 2))
    return np.column_stack([low, low + rng.uniform(0.1, 0.4, (count, 2))])


def priors(count: int) -> Values:
    """Return prior boxes and their variances, of shape (1, 2, 4 · count)."""

    def make(rng: np.random.Generator) -> np.ndarray:
        boxes = unit_boxes(rng, count).ravel()
        return np.stack([boxes, np.tile([0.1, 0.1, 0.2, 0.2], count)])[None]

    return make


def objects(images: int, each: int, classes: int) -> Values:
    """Return annotated boxes as rows of image, class, instance, corners, difficult."""

    def make(rng: np.random.Generator) -> np.ndarray:
        count = images * each
        image = np.repeat(np.arange(images), each)
        label, zeros = rng.integers(1, classes, count), np.zeros(count)
        return np.column_stack([image, label, zeros, unit_boxes(rng, count), zeros])[None, None]

    return make


def detections(images: int, each: int, classes: int) -> Values:
    """Return detected boxes as rows of image, class, score, corners."""

    def make(rng: np.random.Generator) -> np.ndarray:
        count = images * each
        image = np.repeat(np.arange(images), each)
        label, score = rng.integers(1, classes, count), rng.uniform(0, 1, count)
        return np.column_stack([image, label, score, unit_boxes(rng, count)])[None, None]

    return make


def images(*shape: int) -> Values:
    """Return pixels of 0 to 255."""
    return lambda rng: rng.uniform(0, 255, shape)


def scene_labels(number: int, objects: int) -> Values:
    """Return DetectNet's labels: a head, and objects in an image of 1242 by 375."""

    def make(rng: np.random.Generator) -> np.ndarray:
        found = np.zeros((number, 1, objects + 1, 16))
        found[:, 0, 0, :2] = objects, 16
        found[:, 0, 1:, :4] = rng.uniform((0, 0, 20, 20), (1100, 300, 200, 90), (objects, 4))
        found[:, 0, 1:, 5] = 1
        return found

    return make


def annotated_pixels(*shape: int) -> Values:
    """Return labels of cells (class, centre, size, overlap): shape is number, height, width."""

    def make(rng: np.random.Generator) -> np.ndarray:
        number, height, width = shape
        found = np.zeros((number, 6, height, width))
        chosen = rng.random((number, height, width)) < 0.05
        found[:, 0] = np.where(chosen, rng.integers(1, 3, (number, height, width)), 0)
        found[:, 1:3] = rng.uniform(0, 8 * height, (number, 2, height, width))
        found[:, 3:5] = rng.uniform(20, 60, (number, 2, height, width))
        found[:, 5] = rng.uniform(0, 0.8, (number, height, width))
        return found

    return make


def fixed(*rows: list[float]) -> Values:
    """Return given values."""
    return lambda rng: np.array(rows, float)


IMAGES = normal(32, 32, 32, 32)  # 4 MB
MATRIX, LABELS = normal(1024, 1024), labels(10, 4096)
SCORES = normal(4096, 256)
SEQUENCE = (normal(16, 64, 256), labels(2, 16, 64))
CONVOLUTION = "convolution_param { num_output: 32 kernel_size: 3 pad: 1 }"
RECURRENT = "recurrent_param { num_output: 128 weight_filler { type: 'xavier' } }"
DEFAULT = Setup("", (IMAGES,))
# As in SSD: 8732 prior boxes, 21 classes; as in Faster R-CNN: images of 600 × 1000, stride 16.
PRIORS, CLASSES = 8732, 21
FEATURES, ROIS = normal(2, 256, 38, 63), rois(128)
BOXES = "field_w: 60 field_h: 60"

# Types that are missing here take one bottom of images and need no fields.
SETUPS: dict[str, Setup] = {
    "Accuracy": Setup("", (SCORES, LABELS)),
    "ArgMax": Setup("argmax_param { axis: 1 }", (SCORES,)),
    "Axpy": Setup("", (normal(32, 32), IMAGES, IMAGES)),
    "BatchReindex": Setup("", (IMAGES, labels(10, 32))),
    "BboxAccuracy": Setup(
        "",
        (
            normal(4096, 84),
            rois(4096, 1),
            lambda rng: np.column_stack(
                [rng.integers(0, 21, 4096), rois(4096)(rng)[:, 1:], rng.uniform(0, 1, 4096)]
            ),
        ),
        2,
    ),
    "Bias": Setup("bias_param { filler { type: 'gaussian' } }", (IMAGES,)),
    "BoxAnnotatorOHEM": Setup(
        "box_annotator_ohem_param { roi_per_img: 128 }",
        (rois(600), uniform(600), labels(21, 600), normal(600, 8)),
        2,
    ),
    "BoxGroupOutput": Setup(
        "box_group_output_param { box_group_param { field_w: 60 field_h: 60 stride: 8 } }",
        (normal(1, 2, 72, 96), normal(1, 4, 72, 96)),
        2,
    ),
    "BoxOutput": Setup(
        f"box_output_param {{ {BOXES} downsample_rate: 8 }}", (normal(1, 6, 72, 96),), 2
    ),
    "CenterLoss": Setup(
        "center_loss_param { num_output: 256 center_filler { type: 'xavier' } }",
        (normal(4096, 256), labels(256, 4096)),
    ),
    "ChannelScale": Setup("", (IMAGES, normal(32, 1, 32, 32))),
    "Chnwise": Setup("", (IMAGES, normal(32, 32))),
    "Concat": Setup("", (IMAGES, IMAGES)),
    "ContrastiveLoss": Setup("", (MATRIX, MATRIX, labels(2, 1024))),
    "Convolution": Setup(CONVOLUTION, (IMAGES,)),
    "ConvolutionDepthwise": Setup(CONVOLUTION, (IMAGES,)),
    "Crop": Setup("crop_param { offset: 2 }", (IMAGES, normal(32, 32, 28, 28))),
    "DecodeBBox": Setup("bbox_reg_param { cls_aware: false }", (normal(4096, 8), rois(4096))),
    "Deconvolution": Setup(CONVOLUTION, (IMAGES,)),
    "DepthwiseConvolution": Setup(CONVOLUTION.replace("{", "{ group: 32"), (IMAGES,)),
    "DetectionAccuracy": Setup(
        f"detection_accuracy_param {{ cls_num: 3 {BOXES} downsample_rate: 8 }}",
        (normal(4, 7, 60, 80), annotated_pixels(4, 60, 80)),
        2,
    ),
    "DetectNetTransformation": Setup(
        "detectnet_groundtruth_param { stride: 16 gridbox_type: GRIDBOX_MIN min_cvg_len: 20 } "
        "transform_param { mean_value: 127 }",
        (images(8, 3, 375, 1242), scene_labels(8, 20)),
        2,
    ),
    "DetectionEvaluate": Setup(
        f"detection_evaluate_param {{ num_classes: {CLASSES} }}",
        (detections(8, 200, CLASSES), objects(8, 10, CLASSES)),
    ),
    "DetectionGroupAccuracy": Setup(
        f"detection_group_accuracy_param {{ cls_num: 3 {BOXES} stride: 8 }}",
        (normal(4, 3, 60, 80), normal(4, 4, 60, 80), annotated_pixels(4, 60, 80)),
        2,
    ),
    "DetectionGroupLoss": Setup(
        f"detection_group_loss_param {{ cls_num: 3 {BOXES} stride: 8 bg_multiple: 3 }} "
        "bbox_reg_param { bbox_mean: [0, 0, 0, 0] bbox_std: [1, 1, 1, 1] }",
        (normal(4, 3, 60, 80), normal(4, 4, 60, 80), annotated_pixels(4, 60, 80)),
    ),
    "DetectionLoss": Setup(
        f"detection_loss_param {{ cls_num: 3 {BOXES} downsample_rate: 8 sample_mode: 'all' }} "
        "bbox_reg_param { bbox_mean: [0, 0, 0, 0] bbox_std: [1, 1, 1, 1] }",
        (normal(4, 7, 60, 80), annotated_pixels(4, 60, 80)),
    ),
    "DetectionOutput": Setup(
        f"detection_output_param {{ num_classes: {CLASSES} code_type: CENTER_SIZE keep_top_k: 200 "
        "confidence_threshold: 0.01 nms_param { nms_threshold: 0.45 top_k: 400 } }",
        (
            normal(8, 4 * PRIORS),
            lambda rng: chances(8 * PRIORS, CLASSES)(rng).reshape(8, -1),
            priors(PRIORS),
        ),
    ),
    "DiceCoefLoss": Setup("", (MATRIX, MATRIX)),
    "DummyData": Setup("dummy_data_param { shape { dim: 1024 dim: 1024 } }", ()),
    "Eltwise": Setup("", (IMAGES, IMAGES)),
    "EltwiseAccuracy": Setup("", (IMAGES, labels(32, 32, 1, 32, 32))),
    "Embed": Setup("embed_param { num_output: 256 input_dim: 10 }", (LABELS,)),
    "EuclideanDist": Setup("", (MATRIX, MATRIX)),
    "EuclideanLoss": Setup("", (MATRIX, MATRIX)),
    "Filter": Setup("", (IMAGES, labels(2, 32))),
    "FrcnnOutput": Setup(
        "frcnn_output_param { conf_thr: 0.1 } bbox_reg_param { cls_aware: false }",
        (chances(300, 21), normal(300, 8), rois(300, 1), fixed([600, 1000])),
    ),
    "Gather": Setup("", (IMAGES, LABELS), 2),
    "GeneralContrastiveLoss": Setup("", (MATRIX, labels(1024, 1024))),
    "GeneralTripletLoss": Setup("", (MATRIX, labels(1024, 1024))),
    "HingeLoss": Setup("", (SCORES, LABELS)),
    "Im2col": Setup("convolution_param { kernel_size: 3 pad: 1 }", (IMAGES,)),
    "InfogainLoss": Setup("", (chances(4096, 256), LABELS, uniform(1, 1, 256, 256))),
    "InnerDistance": Setup("inner_distance_param { num_output: 1024 }", (normal(256, 512),)),
    "InnerProduct": Setup("inner_product_param { num_output: 256 }", (MATRIX,)),
    "Interp": Setup("interp_param { height: 64 width: 64 }", (IMAGES,)),
    "L1Loss": Setup("", (MATRIX, MATRIX)),
    "LRN": Setup("", (uniform(32, 32, 32, 32),)),
    "LSTM": Setup(RECURRENT, SEQUENCE),
    "LSTMUnit": Setup("", (normal(1, 1024, 256), normal(1, 1024, 1024), labels(2, 1, 1024)), 2),
    "LabelSpecificAdd": Setup(
        "label_specific_add_param { bias: -0.3 }", (MATRIX, labels(1024, 1024))
    ),
    "LabelSpecificRescale": Setup("", (MATRIX, labels(1024, 1024))),
    "LargeMarginInnerProduct": Setup(
        "largemargin_inner_product_param { num_output: 1024 type: QUADRUPLE }",
        (normal(256, 512), labels(1024, 256)),
    ),
    "Log": Setup("", (uniform(32, 32, 32, 32),)),
    "Lstm": Setup("lstm_param { num_output: 128 weight_filler { type: 'xavier' } }", SEQUENCE),
    "MarginInnerProduct": Setup(
        "margin_inner_product_param { num_output: 1024 type: QUADRUPLE }",
        (normal(256, 512), labels(1024, 256)),
    ),
    "MaskPooling": Setup("", (normal(128, 256, 14, 14), uniform(128, 1, 14, 14))),
    "MaskResize": Setup(
        "mask_resize_param { output_height: 14 output_width: 14 }", (uniform(1024, 1, 21, 21),)
    ),
    "MultiBoxLoss": Setup(
        f"multibox_loss_param {{ num_classes: {CLASSES} code_type: CENTER_SIZE neg_overlap: 0.5 }}",
        (
            normal(8, 4 * PRIORS),
            normal(8, CLASSES * PRIORS),
            priors(PRIORS),
            objects(8, 10, CLASSES),
        ),
    ),
    "MultinomialLogisticLoss": Setup("", (chances(4096, 256), LABELS)),
    "PSROIPooling": Setup(
        "psroi_pooling_param { spatial_scale: 0.0625 output_dim: 21 group_size: 7 }",
        (normal(1, 21 * 49, 38, 63), rois(128, 1)),
    ),
    "Noise": Setup("noise_param { gaussian_std: 0.1 }", (IMAGES,)),
    "Parameter": Setup("parameter_param { shape { dim: 1024 dim: 1024 } }", ()),
    "Permute": Setup("permute_param { order: [0, 2, 3, 1] }", (IMAGES,)),
    "Pooling": Setup("pooling_param { kernel_size: 3 stride: 2 }", (IMAGES,)),
    "PriorBox": Setup(
        "prior_box_param { min_size: 60 max_size: 111 aspect_ratio: 2 aspect_ratio: 3 }",
        (normal(1, 256, 38, 38), normal(1, 3, 300, 300)),
    ),
    "PriorBoxClustered": Setup(
        "prior_box_param { width: [29, 41, 58, 91] height: [67, 90, 129, 190] }",
        (normal(1, 256, 38, 38), normal(1, 3, 300, 300)),
    ),
    "Proposal": Setup(
        "proposal_param { ratio: [0.5, 1, 2] scale: [8, 16, 32] }",
        (uniform(1, 18, 38, 63), normal(1, 36, 38, 63), fixed([600, 1000, 1])),
        2,
    ),
    "ProposalTarget": Setup(
        "proposal_target_param { cls_num: 21 batch_size: 128 }",
        (
            rois(2000, 1),
            lambda rng: np.column_stack([rois(10, 1)(rng), rng.integers(1, 21, 10), np.zeros(10)]),
        ),
        7,
    ),
    "RNN": Setup(RECURRENT, SEQUENCE),
    "ROIAlign": Setup(
        "roi_pooling_param { pooled_h: 7 pooled_w: 7 spatial_scale: 0.0625 }", (FEATURES, ROIS)
    ),
    "ROIPooling": Setup(
        "roi_pooling_param { pooled_h: 7 pooled_w: 7 spatial_scale: 0.0625 }", (FEATURES, ROIS)
    ),
    "ROIWarping": Setup(
        "roi_warping_param { pooled_h: 7 pooled_w: 7 spatial_scale: 0.0625 }", (FEATURES, ROIS)
    ),
    "Reorg": Setup("reorg_param { stride: 2 }", (IMAGES,)),
    "Reshape": Setup("reshape_param { shape { dim: 0 dim: -1 } }", (IMAGES,)),
    "SPP": Setup("spp_param { pyramid_height: 3 }", (IMAGES,)),
    "Scale": Setup("scale_param { bias_term: true }", (IMAGES,)),
    "ScaleRoute": Setup("scale_route_param { low_scale: 100 }", (ROIS, normal(128, 256, 7, 7)), 2),
    "SegAccuracy": Setup("", (IMAGES, labels(32, 32, 1, 32, 32))),
    "Select": Setup("", (MATRIX, MATRIX, labels(2, 1024))),
    "SigmoidCrossEntropyBalanceLoss": Setup("", (MATRIX, labels(2, 1024, 1024))),
    "SigmoidCrossEntropyLoss": Setup("", (MATRIX, uniform(1024, 1024))),
    "Silence": Setup("", (IMAGES,), 0),
    "Slice": Setup("", (IMAGES,), 2),
    "SmoothL1Loss": Setup("", (MATRIX, MATRIX, MATRIX, MATRIX)),
    "SmoothL1LossOHEM": Setup("", (IMAGES, IMAGES, IMAGES)),
    "Softmax": Setup("", (SCORES,)),
    "SoftmaxWithDist": Setup("", (MATRIX, labels(1024, 1024))),
    "SoftmaxWithLoss": Setup("", (SCORES, LABELS)),
    "SoftmaxWithLossOHEM": Setup("", (SCORES, LABELS)),
    "Split": Setup("", (IMAGES,), 2),
    "Tile": Setup("tile_param { tiles: 2 }", (IMAGES,)),
    "Transpose": Setup("transpose_param { dim: [0, 2, 3, 1] }", (IMAGES,)),
    "Unpooling": Setup(
        "unpooling_param { unpool_size: 64 }", (IMAGES, labels(4096, 32, 32, 32, 32))
    ),
    "Upsample": Setup("upsample_param { scale: 2 }", (IMAGES, labels(4096, 32, 32, 32, 32))),
    "Warping": Setup("", (IMAGES, normal(32, 2, 32, 32))),
}
