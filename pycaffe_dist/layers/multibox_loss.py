"""MultiBoxLoss: the loss of predicted boxes and of their classes (SSD)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.boxes import CORNER, decode_boxes
from pycaffe_dist.kernels.labels import total_loss
from pycaffe_dist.kernels.matching import (
    CLASS,
    IMAGE,
    Matching,
    Mining,
    Reading,
    check_priors,
    match_boxes,
    mine,
    read_labels,
)
from pycaffe_dist.kernels.multibox import (
    Location,
    image_losses,
    location_gradient,
    location_losses,
    logistic_gradients,
    logistic_losses,
    one_hot,
    prior_classes,
    softmax_gradients,
    softmax_losses,
    unmined_targets,
)
from pycaffe_dist.layers.base import Arity, Need, register
from pycaffe_dist.layers.checking import describe, report, require_no_gradient, require_same_batch
from pycaffe_dist.layers.loss import VALID, Loss, normalization_of
from pycaffe_dist.schema import caffe_pb2

_Parameter = caffe_pb2.MultiBoxLossParameter


@register("MultiBoxLoss")
class MultiBoxLoss(Loss):
    """The loss of predicted boxes and their classes, for the priors that fit a labelled box (SSD).

    As in weiliu89/caffe (branch ssd).  Bottoms: offsets (N, P·4, or P·C·4 unless share_location),
    scores (N, P·C), priors (1, 2, P·4) with their variances, and labels (1, 1, G, 8): image, class,
    instance, xmin, ymin, xmax, ymax, difficult; image -1 marks an empty row.  Rows may be in any
    order, and an image may have none.

    VALID, the default normalization, divides by the matches of the batch, on several ranks of all
    their batches.  The fork's faults are kept: with encode_variance_in_target the gradient of
    offsets lacks the factor 1/variance; nms_param without top_k leaves no prior to mine; LOGISTIC
    with mining NONE takes the number background_label_id as every free prior's target, and
    misplaces the targets of all images but the first.  Only the fork's use of old matches in a
    second forward pass is not kept.

    Two more bottoms are the predictions of a first stage, as in sfzhang15/RefineDet: probabilities
    (N, P·2) of nothing and something, and offsets (N, P·4).  Mining takes no prior whose second
    probability is below objectness_score.  With the offsets, the priors that they move are matched
    and compared with; but predicted boxes, of HARD_EXAMPLE the losses too, are still those of the
    unmoved priors.  The first stage gets no gradient here.  With objectness_score and two classes,
    as the first stage's own loss has, all labels but 0 are of class 1.
    """

    bottoms = Arity(4, 6)
    backward_needs_bottom = Need.VALUE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.multibox_loss_param
        if param.num_classes < 1:
            raise self.error(f"needs num_classes of at least 1, found {param.num_classes}")
        self._classes: int = param.num_classes
        self._location_classes = 1 if param.share_location else self._classes
        # -1, for no background, is written as a number without a sign.
        self.background = int(np.uint32(param.background_label_id).astype(np.int32))
        self.logistic = param.conf_loss_type == _Parameter.LOGISTIC
        staged = param.HasField("objectness_score") or len(bottom) > 4
        two = self._classes == 2 and self.background == 0
        self.agnostic = param.map_object_to_agnostic or (staged and two)
        self.mining_type = self._read_mining()
        self._check_options()
        self.location = Location(
            param.code_type,
            param.encode_variance_in_target,
            param.loc_loss_type == _Parameter.L2,
            param.bp_inside,
            not param.use_prior_for_matching,
        )
        self.matching = Matching(
            not (param.share_location or param.use_prior_for_matching),
            param.match_type == _Parameter.PER_PREDICTION,
            param.overlap_threshold,
            param.ignore_cross_boundary_bbox,
        )
        self._normalization = normalization_of(self.param.loss_param)
        self.uses_rank_mean = self._normalization == VALID
        wanted = list(self.param.propagate_down)[:2] or [True, True]
        self.weights = param.loc_weight * wanted[0], 1.0 * wanted[1]
        # The loss and its divisor; the first wrong value.
        self._total, self._wrong = xp().ones(2), xp().zeros(1, np.uint64)
        self._make_arrays((0, 0))

    def _read_mining(self) -> int:
        """Return the type of mining; do_neg_mining is its old form."""
        param = self.param.multibox_loss_param
        if not param.HasField("do_neg_mining"):
            return param.mining_type
        if not param.HasField("mining_type"):
            return _Parameter.MAX_NEGATIVE if param.do_neg_mining else _Parameter.NONE
        if param.do_neg_mining != (param.mining_type != _Parameter.NONE):
            name = _Parameter.MiningType.Name(param.mining_type)
            raise self.error(
                f"do_neg_mining: {str(param.do_neg_mining).lower()} contradicts mining_type: "
                f"{name}; leave do_neg_mining out"
            )
        return param.mining_type

    def _check_options(self) -> None:
        param, classes = self.param.multibox_loss_param, self._classes
        stages = len(self.param.bottom)
        if stages > 4 and param.HasField("nms_param"):
            raise self.error(
                "takes no nms_param with a first stage: the fork suppresses boxes that its scores "
                "have left out"
            )
        if stages > 5 and not param.share_location:
            raise self.error("needs share_location: true with the offsets of a first stage")
        if self.mining_type != _Parameter.NONE and not param.share_location:
            raise self.error("mining needs share_location: true; set mining_type: NONE")
        least = -1 if self.logistic else 0
        if not least <= self.background < classes:
            raise self.error(
                f"background_label_id {self.background} is none of the {classes} classes "
                f"({least} to {classes - 1})"
            )
        if param.map_object_to_agnostic and classes != self.background + 2:
            raise self.error(
                f"map_object_to_agnostic needs num_classes: 2 with background_label_id: 0 (or 1 "
                f"without background), found {classes} with {self.background}"
            )
        if self.mining_type == _Parameter.HARD_EXAMPLE and param.sample_size < 1:
            raise self.error(f"needs sample_size of at least 1, found {param.sample_size}")

    def mining(self) -> Mining:
        """Return how priors are chosen by their losses."""
        param = self.param.multibox_loss_param
        threshold = param.nms_param.nms_threshold if param.HasField("nms_param") else 0.0
        return Mining(
            self.mining_type == _Parameter.HARD_EXAMPLE,
            param.sample_size,
            param.neg_pos_ratio,
            param.neg_overlap,
            threshold,
            param.nms_param.top_k,
        )

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for index in range(1, len(bottom)):
            if index not in (2, 3):
                require_same_batch(self, bottom, 0, index)
        self._check_shapes(bottom)
        top[0].reshape()
        self._owner, self._kind = (xp().zeros(bottom[3].count // 8, np.int32) for _ in range(2))
        # Each batch has another number of labels, but nearly always as many priors.
        shape = bottom[0].shape[0], bottom[2].count // 8
        if self._counted.shape != shape:
            self._make_arrays(shape)

    def _make_arrays(self, shape: tuple[int, int]) -> None:
        """Make the arrays for ``shape``: images and priors."""
        images, priors = shape
        own = self._classes if self.matching.per_class else 1
        dtype = self.context.parameter_dtype
        # Each prior's matches, their overlaps, class, losses, and whether the last one counts.
        self._matches = xp().zeros((images, own, priors), np.int32)
        self._overlaps = xp().zeros(self._matches.shape, dtype)
        self._own_class = xp().zeros(shape, np.int32)
        self._box_losses, self._class_losses = xp().zeros(shape, dtype), xp().zeros(shape, dtype)
        self._counted, self._allowed = xp().ones(shape, bool), xp().ones(shape, bool)
        self._targets = xp().zeros((*shape, self._classes) if self.logistic else 0, dtype)
        # Each image's loss and number of matches; no image has a wrong label that total_loss finds.
        self._losses, self._found = xp().zeros(images), xp().zeros(images, np.int64)
        self._right = xp().full(images, -1, np.int64)

    def _check_shapes(self, bottom: list[Blob]) -> None:
        shape = bottom[2].shape
        if bottom[2].count != 2 * 4 * (bottom[2].count // 8) or shape[:2] != (1, 2):
            raise self.error(
                f"needs priors of shape (1, 2, 4·number), found {describe(self, bottom, 2)}"
            )
        if len(bottom[3].shape) < 2 or bottom[3].shape[-1] != 8:
            raise self.error(
                f"needs labels of shape (1, 1, boxes, 8), found {describe(self, bottom, 3)}"
            )
        priors = bottom[2].count // 8
        sizes = {0: 4 * self._location_classes, 1: self._classes, 4: 2, 5: 4}
        for index, each in list(sizes.items())[: len(bottom) - 2]:
            found = bottom[index].count_of(1) if bottom[index].ndim else 0
            if found != priors * each:
                raise self.error(
                    f"needs {priors}·{each} = {priors * each} numbers of each image for the "
                    f"{priors} priors of {describe(self, bottom, 2)}, found "
                    f"{describe(self, bottom, index)}"
                )

    def loss(self, bottom: list[Blob], top: list[Blob]) -> float:
        dtype = self.context.parameter_dtype
        self._label = bottom[3].data.reshape(-1, 8).astype(dtype, copy=False)
        self._priors = bottom[2].data.reshape(2, -1, 4).astype(dtype, copy=False)
        self._check(bottom)
        self._read_first_stage(bottom)
        self._match(bottom)
        hard = self.mining_type == _Parameter.HARD_EXAMPLE
        self._find_box_losses(bottom, self._priors[:1] if hard else self._origins)
        self._find_class_losses(bottom)
        if self.mining_type != _Parameter.NONE:
            self._mine(bottom)
        if hard and len(bottom) > 5:
            self._find_box_losses(bottom, self._origins)
        losses = self._box_losses, self._class_losses
        counts = self._matches, self._counted
        image_losses(*losses, *counts, self.weights, self._losses, self._found)
        images, priors = self._counted.shape
        divisor = self.divisor(self._normalization, (images, images * priors), self._found)
        sums = self._losses, self._found, self._right, self._box_losses
        total_loss(*sums, divisor, self._total, self._wrong)
        return self._total[0]

    def _check(self, bottom: list[Blob]) -> None:
        """Read the labels, and raise LayerError (on a GPU later) for a wrong one or wrong prior."""
        param, images = self.param.multibox_loss_param, bottom[0].shape[0]
        reading = Reading(
            images,
            self._classes,
            self.background,
            self.agnostic,
            param.use_difficult_gt,
        )
        read_labels(self._label, reading, self._owner, self._kind, self._wrong)
        report(self._wrong, self._wrong_label(bottom))
        decodes = self._decodes() or len(bottom) > 5
        uses_sizes = decodes and self.location.code != CORNER
        check_priors(self._priors, uses_sizes, self._wrong)
        report(self._wrong, self._wrong_prior(bottom))

    def _wrong_label(self, bottom: list[Blob]) -> Callable[[int, float], Exception]:
        where, images = describe(self, bottom, 3), bottom[0].shape[0]

        def error(position: int, value: float) -> Exception:
            row, column = divmod(position, 8)
            needs = f"is no finite number: {value:g}"
            if column == IMAGE:
                needs = f"is of image {value:g}, found images 0 to {images - 1}"
            elif column == CLASS and value == self.background:
                needs = f"is of class {value:g}, the background"
            elif column == CLASS:
                needs = f"is of class {value:g}, none of 0 to {self._classes - 1}"
            else:
                needs = f"has {value:g} for {('xmin', 'ymin', 'xmax', 'ymax')[column - 3]}"
            return self.error(f"row {row} of bottom {where} {needs}")

        return error

    def _wrong_prior(self, bottom: list[Blob]) -> Callable[[int, float], Exception]:
        where, priors = describe(self, bottom, 2), bottom[2].count // 8

        def error(position: int, value: float) -> Exception:
            row, k = divmod(position, 4)
            name = ("xmin", "ymin", "xmax", "ymax")[k]
            if row >= priors:
                what = f"has the variance {value:g} for {name}; variances must be positive"
            else:
                what = f"has {name} {value:g}; boxes must be finite, and not empty if decoded"
            return self.error(f"prior {row % priors} of bottom {where} {what}")

        return error

    def _predictions(self, bottom: list[Blob]) -> np.ndarray:
        return bottom[0].data.reshape(len(self._matches), -1, self._location_classes, 4)

    def _decodes(self) -> bool:
        """Tell whether predictions are decoded: for matching, for suppression or for bp_inside."""
        param = self.param.multibox_loss_param
        mines = self.mining_type != _Parameter.NONE and self.mining().suppression > 0
        return not param.use_prior_for_matching or (mines and not param.use_prior_for_nms)

    def _boxes(self, bottom: list[Blob], priors: bool) -> np.ndarray:
        """Return the boxes of all priors (1, 1, P, 4), or those predicted (N, L, P, 4)."""
        if priors:
            return self._priors[:1].reshape(1, 1, -1, 4)
        numbers = self._predictions(bottom)
        images, count, classes = numbers.shape[:3]
        boxes = xp().empty((images, classes, count, 4), self.context.parameter_dtype)
        code = self.location.code, self.location.variance_in_target
        decode_boxes(numbers, self._priors[0], self._priors[1], *code, boxes)
        return boxes

    def _read_first_stage(self, bottom: list[Blob]) -> None:
        """Find which priors mining may choose, and the boxes (N or 1, P, 4) that offsets move."""
        images, priors = self._counted.shape
        dtype, param = self.context.parameter_dtype, self.param.multibox_loss_param
        self._origins = self._priors[:1]
        if len(bottom) > 4:
            chances = bottom[4].data.reshape(images, priors, 2).astype(dtype, copy=False)
            self._allowed[...] = chances[:, :, 1] >= param.objectness_score
        if len(bottom) > 5:
            offsets = bottom[5].data.reshape(images, priors, 1, 4)
            boxes = xp().empty((images, 1, priors, 4), dtype)
            code = self.location.code, self.location.variance_in_target
            decode_boxes(offsets, self._priors[0], self._priors[1], *code, boxes)
            self._origins = boxes[:, 0]

    def _find_box_losses(self, bottom: list[Blob], boxes: np.ndarray) -> None:
        arrays = self._predictions(bottom), boxes, self._priors[1], self._label, self._kind
        location_losses(*arrays, self._matches, self.location, self._box_losses)

    def _match(self, bottom: list[Blob]) -> None:
        if self.param.multibox_loss_param.use_prior_for_matching:
            boxes = self._origins[:, None]
        else:
            boxes = self._boxes(bottom, False)
        labels = self._label, self._owner, self._kind
        match_boxes(boxes, *labels, self.matching, self._matches, self._overlaps)

    def _rows(self, bottom: list[Blob]) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores (N·P, classes) and their losses (N·P)."""
        return bottom[1].data.reshape(-1, self._classes), self._class_losses.reshape(-1)

    def _find_class_losses(self, bottom: list[Blob]) -> None:
        prior_classes(self._matches, self._kind, self.background, self._own_class)
        scores, losses = self._rows(bottom)
        if not self.logistic:
            softmax_losses(scores, self._own_class.reshape(-1), losses)
            return
        targets = self._targets.reshape(-1, self._classes)
        if self.mining_type == _Parameter.NONE:
            unmined_targets(self._matches, self._kind, self.background, self._targets)
        else:
            one_hot(self._own_class.reshape(-1), targets)
        logistic_losses(scores, targets, losses)

    def _mine(self, bottom: list[Blob]) -> None:
        mining, param = self.mining(), self.param.multibox_loss_param
        boxes = self._boxes(bottom, param.use_prior_for_nms or mining.suppression <= 0)
        losses = self._class_losses, self._box_losses
        arrays = boxes, self._owner, self._overlaps, self._allowed
        mine(*arrays, mining, self._matches, *losses, self._counted)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 2, 3)
        for blob in (blob for blob, wanted in zip(bottom[4:], propagate_down[4:]) if wanted):
            blob.diff.fill(0)
        weight, normalizer = self.weight_of(top), self._total[1:]
        if propagate_down[0]:
            numbers = self._predictions(bottom)
            arrays = numbers, self._origins, self._priors[1], self._label, self._kind, self._matches
            gradient = bottom[0].diff.reshape(numbers.shape)
            factor = weight * self.weights[0]
            location_gradient(*arrays, self.location, factor, normalizer, gradient)
        if propagate_down[1]:
            scores, _ = self._rows(bottom)
            gradient = bottom[1].diff.reshape(scores.shape)
            counted, factor = self._counted.reshape(-1), weight * self.weights[1]
            if self.logistic:
                targets = self._targets.reshape(scores.shape)
                logistic_gradients(scores, targets, counted, factor, normalizer, gradient)
            else:
                classes = self._own_class.reshape(-1)
                softmax_gradients(scores, classes, counted, factor, normalizer, gradient)

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Only predictions have a gradient."""
        return bottom_index < 2
