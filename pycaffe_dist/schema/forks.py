"""The catalogue of what Caffe's forks have and pcaffe lacks: layer types and fields.

A prototxt that uses it is refused with the name of the fork, except for the fields in ``IGNORED``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pycaffe_dist.schema.survey import Unknown

# The layer types of each fork, those of V1 layers in capitals.
_TYPES = {
    "1093842024/caffe-heatmaps-landmarks-train": "DataHeatmap",
    "Hwang64/caffe-mlkp": "L2Normalization Locaware Prodpara ROIAligning",
    "IntelLabs/SkimCaffe": "ConvolutionReLU ConvolutionReLUPool ConvolutionReLUPoolLRN "
    "InnerProductReLUDropout MKLConvolution MKLLRN MKLPooling MKLReLU ReLUPooling Winograd",
    "MVIG-SJTU/RMPE": "AccuracyHeatmap EltwiseAffine EuclideanLossHeatmap PredictionHeatmap",
    "MhLiao/TextBoxes_plusplus": "CTCGreedyDecoder CTCLoss",
    "NVIDIA/caffe": "TRT",
    "Robert0812/deepsaldet": "MCWINDOW_DATA",
    "TheLegendAli/DeepLab-Context": "ADAPTIVE_BIAS_CHANNEL BIAS_CHANNEL CENSOR_LABEL "
    "CHANNEL_AGGREGATOR DENSE_CRF DOMINANT_CHANNEL HISTOGRAM IGNORE_OVERLAY MAT_READ MAT_WRITE "
    "ONEHOT PADDING RELATIVE_ERROR UNIQUE_LABEL",
    "TimoSaemann/caffe-segnet-cudnn5": "ContourAccuracy",
    "Ultinous/caffe": "AffineMatrix FeatureRegistration ProjectiveMatrix ProjectiveTransformer "
    "TripletData",
    "Wheatly2/Bag-of-Tricks-for-Image-Classification": "Mixup SoftmaxCrossEntropyLoss",
    "ZheC/Realtime_Multi-Person_Pose_Estimation": "CPMData",
    "DengPingFan/DAVSOD": "ConvLSTM ConvLSTMUnit",
    "dlunion/CC4.0": "ContinuationIndicator CtcLoss GetDataDim ImageClsData ImageSalobjData "
    "LabelsequenceAccuracy LstmJun STLoss VisualSaliency WarpCTCLoss",
    "ducha-aiki/caffenet-benchmark": "APL GatedMaxAve RReLU TreepoolKernel1L TreepoolMaxAve",
    "eldar/deepcut-cnn": "PoseData SoftmaxWithLossVec",
    "eric612/MobileNet-YOLO": "AssistedExcitation GaussianYolov3 LaneData SegmentationEvaluate "
    "YoloDetectionOutput YoloSeg Yolov3 Yolov3DetectionOutput",
    "facebook/C3D": "BlackHole CONVOLUTION3D Convolution3D DECONVOLUTION3D Deconvolution3D "
    "L2Normalize POOLING3D Pooling3D VIDEO_DATA VIDEO_SEGMENTATION_DATA "
    "VIDEO_WITH_VOXEL_TRUTH_DATA VOXEL_SOFTMAX VOXEL_SOFTMAX_LOSS VOXEL_CUSTOM_LOSS",
    "goodluckcwl/Face-alignment-mobilenet-v2": "ImageFloatData WeightEuclideanLoss",
    "happynear/caffe-windows": "Arccos BatchContrastiveLoss ConfidencePenaltyLoss CorrelationLoss "
    "Cosine FCNAccuracy FocalLoss GlobalLSEMargin Gram Hotspot Insanity Local MovingNormalize "
    "MultiLabelImageData NCALoss Pairwise PredictBox Resize SoftContrastiveLoss SoftTruncation "
    "SubRegion Transformer TripletLoss Truncation",
    "hszhao/PSPNet": "AdaptiveBiasChannel BiasChannel DenseCRF DomainTransform "
    "DomainTransformForwardOnly MatRead MatWrite SpatialProduct UniqueLabel",
    "gklz1982/caffe-yolov2": "BoxData ConvolutionRistretto DeconvolutionRistretto EvalDetection "
    "FcRistretto LRNRistretto RegionLoss",
    "intel/caffe": "MKLBatchNorm MnActivation SpatialDropout",
    "jiachen0212/ssd-focal_loss_caffe": "MultiBoxFocalLoss",
    "liu-xb/GGL": "NormalizationL2 SetLoss SetLoss2 UniformLoss VarLoss",
    "lmb-freiburg/flownet2": "Accum BlackAugmentation ChannelNorm Correlation Correlation1D "
    "CustomData DataAugmentation DisparityData Downsample FLOWriter FloatReader FloatWriter "
    "FlowAugmentation FlowWarp GenerateAugmentationParameters ImgReader ImgWriter LpqLoss Mean "
    "NegReLU PFMWriter Resample",
    "lxx1991/caffe_mpi": "BNData RegionConcat RegionConvolution SegCityscapes SegData",
    "lzx1413/caffe": "DeformConvolution InstanceBatchNorm",
    "makefile/frcnn": "AnnotatedRData DeformableConvolution DeformablePSROIPooling "
    "FPNAnchorTarget FPNProposal FPNProposalTarget FrcnnAnchorTarget FrcnnProposal "
    "FrcnnProposalTarget FrcnnRoiData FrcnnVidData MultiRBoxLoss PSROIAlign PriorRBox "
    "RDetectionOutput ROIMaskPooling ROIPadding",
    "naibaf7/caffe": "Affinity ConnectedComponent LibDNNConvolution LibDNNPooling MOE MalisLoss "
    "MergeCrop Quantizer",
    "peteanderson80/bottom-up-attention": "InnerProductBlob",
    "pulkitag/caffe": "CropData CroppingKat CrossConvolution EuclideanLossWithIgnore "
    "GenericWindowData GenericWindowData2 RandomNoise SquareBoxData",
    "rickyHong/caffe-rcnn-action-recognition": "MaskConvolution MultiSoftmaxWithLoss SplitConcat",
    "thuml/Xlearn": "EntropyLoss GradientScaler JMMDLoss MMDLoss OuterProduct",
    "torrvision/crfasrnn": "MULTI_STAGE_MEANFIELD MultiStageMeanfield",
    "yjxiong/caffe": "BatchReduction Scatter SyncBN",
    "zhaoweicai/cascade-rcnn": "HardMining",
}  # fmt: skip
#: The fork that a layer type comes from, OWNER/NAME.
TYPES = {name: fork for fork, names in _TYPES.items() for name in names.split()}
# Layer types whose settings are not in the prototxt.
_SET_ELSEWHERE = frozenset(name for name in TYPES if name.startswith(("Frcnn", "FPN")))

# Fields of layers that Caffe 1.0 has and of solvers, which change numbers.
_FIELDS = {
    "IntelLabs/SkimCaffe": "SolverParameter.breadth_decay "
    "SolverParameter.block_group_decay SolverParameter.kernel_shape_decay "
    "SolverParameter.max_threshold_factor SolverParameter.prune_threshold "
    "SolverParameter.winograd_sparsity_factor",
    "LisaAnne/lisa-caffe-public": "SolverParameter.stepearly TransformationParameter.flow "
    "ImageDataParameter.min_height ImageDataParameter.min_width",
    "MhLiao/TextBoxes_plusplus": "DetectionOutputParameter.use_polygon",
    "NVIDIA/caffe": "ImageDataParameter.precache SolverParameter.larc "
    "SolverParameter.rampup_interval SolverParameter.rampup_lr "
    "SolverParameter.larc_turbo SolverParameter.max_momentum SolverParameter.max_weight_decay "
    "SolverParameter.momentum_policy SolverParameter.momentum_power "
    "SolverParameter.weight_decay_policy SolverParameter.weight_decay_power",
    "TheLegendAli/DeepLab-Context": "ImageDataParameter.has_label "
    "V1LayerParameter.softmaxloss_param V1LayerParameter.strict_dim",
    "ducha-aiki/caffenet-benchmark": "NoiseParameter.convert_to_ycrcb "
    "ResizeParameter.center_object ResizeParameter.max_angle ResizeParameter.max_sz "
    "ResizeParameter.min_sz ResizeParameter.multiscale",
    "eric612/MobileNet-YOLO": "AnnotatedDataParameter.seg_scales "
    "AnnotatedDataParameter.single_class AnnotatedDataParameter.train_diffcult "
    "AnnotatedDataParameter.yolo_data_jitter AnnotatedDataParameter.yolo_data_type",
    "facebook/C3D": "ConvolutionParameter.kernel_depth ConvolutionParameter.temporal_pad "
    "ConvolutionParameter.temporal_stride PoolingParameter.kernel_depth "
    "PoolingParameter.temporal_stride VideoDataParameter.root_folder "
    "VideoDataParameter.sampling_rate VideoDataParameter.show_data VideoDataParameter.use_image",
    "gklz1982/caffe-yolov2": "DataParameter.side DetectionOutputParameter.biases "
    "DetectionOutputParameter.coords",
    "happynear/caffe-windows": "ChannelScaleParameter.global_scale "
    "GeneralContrastiveParameter.add_intra_mae InnerDistanceParameter.transpose "
    "ScaleParameter.max_value ScaleParameter.min_value",
    "Robert0812/deepsaldet": "WindowDataParameter.shuffle",
    "openvinotoolkit/open_model_zoo": "DetectionOutputParameter.input_height "
    "DetectionOutputParameter.input_width DetectionOutputParameter.normalized",
    "weiSupreme/MobileNetv2-SSD": "DistortionParameter.gaussian_prob",
    "intel/caffe": "ConcatParameter.per_fla_fuse SolverParameter.local_gw_ratio "
    "SolverParameter.local_lr_auto SolverParameter.test_offset",
    "jolibrain/caffe": "NonMaximumSuppressionParameter.soft_nms "
    "TransformationParameter.geometry_param",
    "naibaf7/caffe": "ConvolutionParameter.fuse_type LRNParameter.fuse_type",
    "zihaozhang9/FaceBoxes": "PriorBoxParameter.fixed_ratio",
    "lxx1991/caffe_mpi": "BNParameter.moving_average",
}  # fmt: skip
#: The fork that a field MESSAGE.FIELD comes from, OWNER/NAME.
FIELDS = {name: fork for fork, names in _FIELDS.items() for name in names.split()}

_PRECISION = "the precision of arithmetic: here it is the solver's data_type"
_LIBRARY = "chooses between libraries that compute the same"
_MEMORY = "chooses between memory and speed"
_READING = "how records reach memory: the batches are the same"
_UNREAD = "changes nothing in the fork"
_EXCHANGE = "how gradients are exchanged: here the plan decides"
_BLUR = "belongs to gaussian_prob, which is refused unless it is 0"
_GROUPS = "multiplies a decay of the solver, which is refused unless it is 0"
#: Fields without effect on any number, MESSAGE.FIELD or FIELD of any message, with the reason.
IGNORED: Mapping[str, str] = {
    "engine": _LIBRARY,
    "BatchNormParameter.filler": "fills a scale that the fork's fast engines take over from the "
    "next layer, Scale, which has a filler of its own",
    "ConvolutionParameter.conv_algorithm": _LIBRARY,
    "ConvolutionParameter.conv_algos_override": _LIBRARY,
    "ConvolutionParameter.conv_mode": _LIBRARY,
    "ConvolutionParameter.cudnn_convolution_algo_seeker": _LIBRARY,
    "ConvolutionParameter.cudnn_math_override": _LIBRARY,
    "DataParameter.cache": _READING,
    "DataParameter.parser_threads": _READING,
    "DataParameter.shared_file_system": _READING,
    "DataParameter.threads": _READING,
    "DistortionParameter.gaussian_sigma": _BLUR,
    "DistortionParameter.gaussian_size_max": _BLUR,
    "DistortionParameter.gaussian_size_min": _BLUR,
    "ImageDataParameter.cache": _READING,
    "ImageDataParameter.shared_file_system": _READING,
    "ImageDataParameter.threads": _READING,
    "GeneralContrastiveParameter.square": _UNREAD,
    "InnerDistanceParameter.bias_filler": _UNREAD,
    "InnerDistanceParameter.bias_term": _UNREAD,
    "InnerProductParameter.gemm_mode": _LIBRARY,
    "InnerProductParameter.spmdm_transpose_in": _LIBRARY,
    "InnerProductParameter.spmdm_transpose_out": _LIBRARY,
    "LabelSpecificAddParameter.transform_test": _UNREAD,
    "LayerParameter.backward_math": _PRECISION,
    "LayerParameter.backward_type": _PRECISION,
    "LayerParameter.cudnn_math_override": _LIBRARY,
    "LayerParameter.forward_math": _PRECISION,
    "LayerParameter.forward_type": _PRECISION,
    "LayerParameter.quantization_param": "8-bit arithmetic in place of the trained net's: "
    "here the layer computes in full precision",
    "NetParameter.default_backward_math": _PRECISION,
    "NetParameter.default_backward_type": _PRECISION,
    "NetParameter.default_conv_algos_override": _LIBRARY,
    "NetParameter.default_cudnn_math_override": _LIBRARY,
    "NetParameter.default_forward_math": _PRECISION,
    "NetParameter.default_forward_type": _PRECISION,
    "NetParameter.eltwise_mem_sharing": _MEMORY,
    "NetParameter.global_grad_scale": "keeps float16 gradients from underflow: "
    "here it is the solver's loss_scale",
    "NetParameter.global_grad_scale_adaptive": "keeps float16 gradients from underflow: "
    "here it is the solver's loss_scale",
    "NetParameter.mem_param": _MEMORY,
    "NetParameter.multinode": _EXCHANGE,
    "NetParameter.optimize_mem": _MEMORY,
    "NetParameter.reduce_buckets": _EXCHANGE,
    "NonMaximumSuppressionParameter.theta": "belongs to soft_nms, which is refused",
    "ParamSpec.block_group_lasso": _GROUPS,
    "ParamSpec.breadth_decay_mult": _GROUPS,
    "ParamSpec.kernel_shape_decay_mult": _GROUPS,
    "SolverParameter.device_id": "a list of GPUs: here the ranks choose their devices",
    "SolverParameter.richness": _MEMORY,
    "SolverParameter.solver_data_type": _PRECISION,
    "SolverParameter.store_blobs_in_old_format": "the form of snapshots, which both read",
}
#: Other fields, MESSAGE.FIELD, with the values that change nothing.
NEUTRAL: Mapping[str, frozenset[str]] = {
    "ChannelScaleParameter.global_scale": frozenset({"false"}),
    "GeneralContrastiveParameter.add_intra_mae": frozenset({"false"}),
    "InnerDistanceParameter.transpose": frozenset({"false"}),
    "DistortionParameter.gaussian_prob": frozenset({"0", "0.0"}),
    "NonMaximumSuppressionParameter.soft_nms": frozenset({"false"}),
    "ResizeParameter.center_object": frozenset({"false"}),
    "ResizeParameter.max_angle": frozenset({"0", "0.0"}),
    "SolverParameter.block_group_decay": frozenset({"0", "0.0"}),
    "SolverParameter.breadth_decay": frozenset({"0", "0.0"}),
    "SolverParameter.kernel_shape_decay": frozenset({"0", "0.0"}),
    "SolverParameter.local_lr_auto": frozenset({"false"}),
    "SolverParameter.prune_threshold": frozenset({"0", "0.0"}),
    "SolverParameter.test_offset": frozenset({"0"}),
    "SolverParameter.winograd_sparsity_factor": frozenset({"0", "0.0"}),
    "TransformationParameter.flow": frozenset({"false"}),
    "WindowDataParameter.shuffle": frozenset({"false"}),
}


_LARC = 'larc_policy: "scale" is like it'
_WARMUP = 'warmup_type: "quadratic" with warmup_iter and warmup_start_lr is like it'
# What may take the place of a field.
_INSTEAD = {
    "SolverParameter.larc": _LARC,
    "SolverParameter.local_gw_ratio": _LARC,
    "SolverParameter.local_lr_auto": _LARC,
    "SolverParameter.rampup_interval": _WARMUP,
    "SolverParameter.rampup_lr": _WARMUP,
}


def is_ignored(field: Unknown) -> bool:
    """Tell whether a field has no effect on any number."""
    name = f"{field.message}.{field.field}"
    if field.field in IGNORED or name in IGNORED:
        return True
    return field.value in NEUTRAL.get(name, ())


def refusal(field: Unknown) -> str:
    """Return why a field is refused, with the fork that it comes from; empty if unknown."""
    name = f"{field.message}.{field.field}"
    if name not in FIELDS:
        return ""
    instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
    return f", which comes from {FIELDS[name]} and changes numbers{instead}"


def unknown_types(places: Iterable[tuple[str, str, int]]) -> str:
    """Return a sentence about layers whose types pcaffe lacks, each with its fork if known.

    ``places`` has the type, the name and the line of each such layer, 0 for an unknown line.
    """
    layers: dict[str, list[tuple[str, int]]] = {}
    for kind, name, line in places:
        layers.setdefault(kind, []).append((name, line))
    if len(layers) == 1:
        ((kind, found),) = layers.items()
        more = f" (and {len(found) - 1} more of its layers)" if len(found) > 1 else ""
        fork = f"; it comes from {TYPES[kind]}" if kind in TYPES else ""
        text = f"layer '{found[0][0]}'{more} is of type '{kind}', which pcaffe lacks{fork}"
        return text + _elsewhere([kind])
    parts = []
    for kind, found in layers.items():
        lines = [str(line) for _, line in found if line]
        where = f"line {', '.join(_shortened(lines))}" if lines else f"layer '{found[0][0]}'"
        fork = f", from {TYPES[kind]}" if kind in TYPES else ""
        parts.append(f"'{kind}' ({where}{fork})")
    text = f"pcaffe lacks {len(layers)} of its layer types: {', '.join(parts)}"
    return text + _elsewhere(layers)


def _elsewhere(kinds: Iterable[str]) -> str:
    """Return where the fork has the settings of some layer types, if not in the prototxt."""
    if not _SET_ELSEWHERE & set(kinds):
        return ""
    return "; the settings are in a configuration file of the fork, not in the prototxt"


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= 4 else [*lines[:3], "…"]
