"""Layers that see neighbouring pixels or channels."""

import numpy as np
from layer_cases import case, normal, positive

X = normal(2, 4, 6, 5)
IMAGE = {"x": X, "grows": (0, 2, 3)}


def conv(options, x=X, kind="Convolution", **rest):
    grows = rest.pop("grows", (0, 2, 3))
    return case(kind, f"convolution_param {{ {options} }}", x=x, grows=grows, **rest)


def pool(options, x=X, **rest):
    return case("Pooling", f"pooling_param {{ {options} }}", x=x, grows=(0, 2, 3), **rest)


def unpool(options, *shape, size, kind="Upsample"):
    """Different places of each plane as the mask."""

    def places(rng):
        count = shape[2] * shape[3]
        rows = [rng.permutation(size)[:count] for _ in range(shape[0] * shape[1])]
        return np.reshape(rows, shape).astype(float)

    return case(kind, f"{kind.lower()}_param {{ {options} }}", x=normal(*shape), mask=places)


CASES = [
    conv("num_output: 3 kernel_size: 3"),
    conv("num_output: 4 kernel_size: 3 pad: 1 stride: 2 group: 2"),
    conv("num_output: 4 kernel_size: 3 pad: 2 dilation: 2 bias_term: false"),
    conv("num_output: 3 kernel_h: 3 kernel_w: 2 pad_h: 1 pad_w: 0 stride_h: 1 stride_w: 2"),
    conv("num_output: 3 kernel_size: 1"),
    conv("num_output: 3 kernel_size: 3 pad: 1", x2=normal(2, 4, 6, 5), tops=2),
    conv("num_output: 3 kernel_size: 2 pad: 1 axis: 1", x=normal(2, 3, 7), grows=(0, 2)),
    conv("num_output: 2 kernel_size: 2 stride: 2", x=normal(1, 2, 4, 5, 4), grows=(0, 3)),
    conv("num_output: 2 kernel_size: 2 axis: 2", x=normal(2, 3, 2, 5, 4), grows=(0, 1, 4)),
    conv("num_output: 4", x=normal(3, 5), grows=(0,)),
    conv("num_output: 3 kernel_size: 3 stride: 2", x=normal(2, 4, 2, 5)),
    conv("num_output: 3 kernel_size: 3 stride: 2", kind="Deconvolution"),
    conv("num_output: 4 kernel_size: 4 stride: 2 pad: 1 group: 4", kind="Deconvolution"),
    conv("num_output: 2 kernel_size: 3 dilation: 2 bias_term: false", kind="Deconvolution"),
    conv("num_output: 3 kernel_size: 2", kind="Deconvolution", x=normal(2, 3, 7), grows=(0, 2)),
    conv("kernel_size: 3 pad: 1", kind="ConvolutionDepthwise"),
    conv("num_output: 4 kernel_size: 3 stride: 2 bias_term: false", kind="ConvolutionDepthwise"),
    conv("num_output: 4 group: 4 kernel_size: 3 pad: 1", kind="DepthwiseConvolution"),
    conv("num_output: 8 group: 4 kernel_size: 3 stride: 2", kind="DepthwiseConvolution"),
    conv("kernel_size: 3 stride: 2 pad: 1", kind="Im2col"),
    conv("kernel_size: 2 dilation: 2", kind="Im2col", x=normal(2, 3, 7), grows=(0, 2)),
    pool("kernel_size: 3 stride: 2"),
    pool("kernel_size: 3 stride: 2", tops=2),
    pool("kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR"),
    pool("kernel_size: 3 stride: 2 ceil_mode: false"),
    pool("kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2 pad_h: 1 pad_w: 0"),
    pool("pool: AVE kernel_size: 3 stride: 2 pad: 1"),
    pool("pool: AVE global_pooling: true"),
    pool("global_pooling: true"),
    pool("pool: STOCHASTIC kernel_size: 2 stride: 2", x=positive(2, 3, 6, 4)),
    unpool("", 2, 3, 2, 3, size=24),
    unpool("scale_h: 1 scale_w: 2 pad_out_w: true", 2, 3, 3, 2, size=9),
    unpool("upsample_h: 5 upsample_w: 4", 1, 2, 2, 2, size=20),
    unpool("unpool_size: 5 kernel_size: 2", 2, 3, 2, 3, size=25, kind="Unpooling"),
    unpool("unpool_h: 4 unpool_w: 3", 1, 2, 2, 2, size=12, kind="Unpooling"),
    case("Upsample", **IMAGE),
    case("Upsample", "upsample_param { scale: 3 }", **IMAGE),
    case("Interp", "interp_param { zoom_factor: 3 }", **IMAGE),
    case("Interp", "interp_param { shrink_factor: 2 pad_beg: -1 pad_end: -1 }", **IMAGE),
    case("Interp", "interp_param { height: 9 width: 3 pad_end: -2 }", **IMAGE),
    case("Interp", "interp_param { use_blob_size: true }", **IMAGE, y=normal(2, 1, 7, 5)),
    case("Interp", "interp_param { height: 1 width: 5 }", x=normal(2, 1, 4, 1), grows=(0, 3)),
    # Points between cells, where the gradient of the flow is the derivative.
    case("Warping", x=X, flow=lambda rng: rng.integers(-3, 3, (2, 2, 6, 5)) + 0.37, grows=(0,)),
    case("SPP", "spp_param { pyramid_height: 3 }", x=normal(2, 3, 9, 7), grows=(0, 2)),
    case("SPP", "spp_param { pyramid_height: 2 pool: AVE }", **IMAGE),
    case("SPP", "spp_param { pyramid_height: 1 pool: AVE }", **IMAGE),
    case("SPP", "spp_param { pyramid_height: 2 pool: STOCHASTIC }", x=positive(2, 3, 6, 4)),
    case("LRN", "lrn_param { local_size: 3 alpha: 0.5 k: 2 }", **IMAGE),
    case("LRN", "lrn_param { local_size: 5 alpha: 0.5 beta: 0.6 }", **IMAGE),
    case("LRN", "lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }", **IMAGE),
    case("Normalize", **IMAGE),
    case("Normalize", "norm_param { across_spatial: false eps: 0.1 }", **IMAGE),
    case("Normalize", "norm_param { across_spatial: false }", x=normal(5, 3)),
    case("Normalize", "norm_param { eps: 0.5 }", x=normal(2, 3, 300), grows=(0, 2)),
    case("MVN", **IMAGE),
    case("MVN", "mvn_param { across_channels: true }", **IMAGE),
    case("MVN", "mvn_param { normalize_variance: false }", **IMAGE),
    case("BatchNorm", statistics=True, **IMAGE),
    case("BatchNorm", "batch_norm_param { use_global_stats: true }", statistics=True, **IMAGE),
    case("BatchNorm", statistics=True, phase="TEST", **IMAGE),
    case(
        "BatchNorm",
        "batch_norm_param { stats_batch_size: 2 }",
        statistics=True,
        x=normal(4, 3, 2, 3),
    ),
    case("BatchNorm", "batch_norm_param { eps: 0.1 }", statistics=True, x=normal(5, 3)),
    case("BatchNorm", "batch_norm_param { eps: 0.2 }", statistics=True, x=normal(6)),
    case("BatchNorm", "batch_norm_param { scale_bias: true }", statistics=True, **IMAGE),
    case("BatchNorm", "batch_norm_param { scale_filler {} }", phase="TEST", **IMAGE),
    case("BN", statistics=True, **IMAGE),
    case("BN", "bn_param { slope_filler {} eps: 0.1 }", statistics=True, x=normal(5, 3)),
    case("BN", "bn_param { momentum: 0.5 }", phase="TEST", **IMAGE),
    case("BN", "bn_param { frozen: true }", **IMAGE),
    case("BN", "bn_param { scale_filler {} }", **IMAGE),
    case("BN", "bn_param { bn_mode: INFERENCE }", **IMAGE),
]
