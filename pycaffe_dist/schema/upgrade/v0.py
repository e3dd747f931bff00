"""Upgrades V0 layers, one flat message for all types, to V1 layers."""

from __future__ import annotations

from collections.abc import Callable

from pycaffe_dist.errors import PrototxtError, did_you_mean
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.upgrade.v1 import put

Fail = Callable[[str, int], PrototxtError]

TYPES = {
    "accuracy": "ACCURACY",
    "bnll": "BNLL",
    "concat": "CONCAT",
    "conv": "CONVOLUTION",
    "data": "DATA",
    "dropout": "DROPOUT",
    "euclidean_loss": "EUCLIDEAN_LOSS",
    "flatten": "FLATTEN",
    "hdf5_data": "HDF5_DATA",
    "hdf5_output": "HDF5_OUTPUT",
    "im2col": "IM2COL",
    "images": "IMAGE_DATA",
    "infogain_loss": "INFOGAIN_LOSS",
    "innerproduct": "INNER_PRODUCT",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MULTINOMIAL_LOGISTIC_LOSS",
    "pool": "POOLING",
    "relu": "RELU",
    "sigmoid": "SIGMOID",
    "softmax": "SOFTMAX",
    "softmax_loss": "SOFTMAX_LOSS",
    "split": "SPLIT",
    "tanh": "TANH",
    "window_data": "WINDOW_DATA",
}

# The message of a V1 layer that receives the fields of each V0 type.
_PARAM = {
    "conv": "convolution_param",
    "innerproduct": "inner_product_param",
    "pool": "pooling_param",
    "dropout": "dropout_param",
    "lrn": "lrn_param",
    "data": "data_param",
    "hdf5_data": "hdf5_data_param",
    "images": "image_data_param",
    "window_data": "window_data_param",
    "infogain_loss": "infogain_loss_param",
    "concat": "concat_param",
}

# V0 field: its name today and the V0 types that have it.
_FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "num_output": ("num_output", ("conv", "innerproduct")),
    "biasterm": ("bias_term", ("conv", "innerproduct")),
    "weight_filler": ("weight_filler", ("conv", "innerproduct")),
    "bias_filler": ("bias_filler", ("conv", "innerproduct")),
    "pad": ("pad", ("conv", "pool")),
    "kernelsize": ("kernel_size", ("conv", "pool")),
    "stride": ("stride", ("conv", "pool")),
    "group": ("group", ("conv",)),
    "pool": ("pool", ("pool",)),
    "dropout_ratio": ("dropout_ratio", ("dropout",)),
    "local_size": ("local_size", ("lrn",)),
    "alpha": ("alpha", ("lrn",)),
    "beta": ("beta", ("lrn",)),
    "k": ("k", ("lrn",)),
    "source": ("source", ("data", "hdf5_data", "images", "window_data", "infogain_loss")),
    "batchsize": ("batch_size", ("data", "hdf5_data", "images", "window_data")),
    "rand_skip": ("rand_skip", ("data", "images")),
    "shuffle_images": ("shuffle", ("images",)),
    "new_height": ("new_height", ("images",)),
    "new_width": ("new_width", ("images",)),
    "concat_dim": ("concat_dim", ("concat",)),
    "det_fg_threshold": ("fg_threshold", ("window_data",)),
    "det_bg_threshold": ("bg_threshold", ("window_data",)),
    "det_fg_fraction": ("fg_fraction", ("window_data",)),
    "det_context_pad": ("context_pad", ("window_data",)),
    "det_crop_mode": ("crop_mode", ("window_data",)),
}

# These go to transform_param for all types.
_TRANSFORMATIONS = {
    "scale": "scale",
    "meanfile": "mean_file",
    "cropsize": "crop_size",
    "mirror": "mirror",
}
_SAME = ("name", "blobs", "blobs_lr", "weight_decay")


def upgrade_v0_layers(net: caffe_pb2.NetParameter, fail: Fail) -> tuple[list[str], list[int]]:
    """Turn a net's V0 layers into V1 layers, in place.

    Returns notes on fields that are dropped, as in Caffe, because the layer's type does not have
    them, and the former index of each remaining layer (padding layers are removed).
    """
    kept = _fold_padding(net, fail)
    notes: list[str] = []
    for old_index, layer in zip(kept, net.layers):
        if layer.HasField("layer"):
            v0 = caffe_pb2.V0LayerParameter()
            v0.CopyFrom(layer.layer)
            layer.ClearField("layer")
            notes += _upgrade_layer(v0, layer, fail, old_index)
    return notes, kept


def _fold_padding(net: caffe_pb2.NetParameter, fail: Fail) -> list[int]:
    """Move the pad of each padding layer to the layers that read it; remove the padding layers."""
    producer: dict[str, int] = dict.fromkeys(net.input, -1)
    layers = list(net.layers)
    for index, layer in enumerate(layers):
        for position, bottom in enumerate(layer.bottom):
            if bottom not in producer:
                raise fail(f"layer '{layer.layer.name}' reads the unknown blob '{bottom}'", index)
            source = layers[producer[bottom]] if producer[bottom] >= 0 else None
            if source is not None and source.layer.type == "padding":
                if layer.layer.type not in ("conv", "pool") or len(layer.bottom) != 1:
                    raise fail(
                        f"layer '{layer.layer.name}' ({layer.layer.type}) reads padding layer "
                        f"'{source.layer.name}'; only conv and pool layers of one bottom can",
                        index,
                    )
                if len(source.bottom) != 1 or len(source.top) != 1:
                    raise fail(
                        f"padding layer '{source.layer.name}' needs one bottom and one top",
                        producer[bottom],
                    )
                layer.layer.pad = source.layer.pad
                layer.bottom[position] = source.bottom[0]
        producer.update(dict.fromkeys(layer.top, index))
    kept = [i for i, layer in enumerate(layers) if layer.layer.type != "padding"]
    for index in sorted(set(range(len(layers))) - set(kept), reverse=True):
        del net.layers[index]
    return kept


def _upgrade_layer(
    v0: caffe_pb2.V0LayerParameter,
    layer: caffe_pb2.V1LayerParameter,
    fail: Fail,
    index: int,
) -> list[str]:
    if v0.type not in TYPES:
        raise fail(
            f"layer '{v0.name}' has the unknown V0 type '{v0.type}'{did_you_mean(v0.type, TYPES)}",
            index,
        )
    layer.type = caffe_pb2.V1LayerParameter.LayerType.Value(TYPES[v0.type])
    notes = []
    for field, value in v0.ListFields():
        if field.name in _SAME or (field.name, v0.type) == ("hdf5_output_param", "hdf5_output"):
            put(layer, field.name, value)
        elif field.name in _TRANSFORMATIONS:
            put(layer.transform_param, _TRANSFORMATIONS[field.name], value)
        elif v0.type in _FIELDS.get(field.name, ("", ()))[1]:
            put(getattr(layer, _PARAM[v0.type]), _FIELDS[field.name][0], value)
        elif field.name != "type":
            notes.append(f"left out {field.name} of layer '{v0.name}': {v0.type} has no such field")
    return notes
