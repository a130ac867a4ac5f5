"""The numbers of the paper (tatro2020 Tables 1 to 3)."""

from __future__ import annotations

from coset_papers.tatro2020.curve_kinds import ALIGNED, PAM_ALIGNED, PAM_UNALIGNED, UNALIGNED

# Accuracy in percent: mean and deviation of the ends, then of average and minimum along the curves.
ENDS = {
    "TinyTen": {"cifar10": (89.0, 0.1), "cifar100": (58.1, 0.5), "tiny-imagenet": (34.2, 0.2)},
    "ResNet32": {"cifar10": (92.9, 0.1), "cifar100": (67.1, 0.5), "tiny-imagenet": (50.2, 0.0)},
    "GoogLeNet": {"cifar10": (93.4, 0.0), "cifar100": (73.2, 0.4), "tiny-imagenet": (51.6, 0.2)},
}
ACCURACY = {
    "TinyTen": {
        UNALIGNED: {
            "cifar10": (87.4, 0.1, 82.8, 0.5),
            "cifar100": (56.0, 0.2, 53.2, 1.1),
            "tiny-imagenet": (32.5, 0.1, 30.0, 0.3),
        },
        PAM_UNALIGNED: {
            "cifar10": (87.6, 0.1, 84.0, 0.3),
            "cifar100": (57.3, 0.2, 55.9, 0.9),
            "tiny-imagenet": (33.6, 0.1, 32.5, 0.1),
        },
        PAM_ALIGNED: {
            "cifar10": (88.4, 0.1, 87.6, 0.2),
            "cifar100": (58.8, 0.1, 57.7, 0.3),
            "tiny-imagenet": (34.2, 0.1, 33.4, 0.2),
        },
        ALIGNED: {
            "cifar10": (88.5, 0.1, 87.8, 0.1),
            "cifar100": (58.7, 0.2, 57.7, 0.4),
            "tiny-imagenet": (34.4, 0.1, 33.7, 0.1),
        },
    },
    "ResNet32": {
        UNALIGNED: {
            "cifar10": (92.2, 0.1, 89.1, 0.2),
            "cifar100": (66.5, 0.2, 64.7, 0.4),
            "tiny-imagenet": (48.2, 0.1, 45.2, 0.1),
        },
        PAM_UNALIGNED: {
            "cifar10": (92.4, 0.1, 89.9, 0.2),
            "cifar100": (67.0, 0.1, 66.1, 0.1),
            "tiny-imagenet": (48.5, 0.1, 46.6, 0.1),
        },
        PAM_ALIGNED: {
            "cifar10": (92.7, 0.0, 92.1, 0.1),
            "cifar100": (67.6, 0.4, 66.8, 0.1),
            "tiny-imagenet": (49.2, 0.4, 47.9, 0.6),
        },
        ALIGNED: {
            "cifar10": (92.7, 0.1, 92.2, 0.0),
            "cifar100": (67.7, 0.1, 66.6, 0.1),
            "tiny-imagenet": (49.5, 0.3, 48.8, 0.4),
        },
    },
    "GoogLeNet": {
        UNALIGNED: {
            "cifar10": (93.3, 0.0, 92.1, 0.1),
            "cifar100": (73.1, 0.4, 69.8, 0.3),
            "tiny-imagenet": (51.9, 0.1, 48.7, 0.4),
        },
        ALIGNED: {
            "cifar10": (93.4, 0.0, 93.1, 0.0),
            "cifar100": (73.4, 0.3, 72.9, 0.3),
            "tiny-imagenet": (52.4, 0.2, 51.4, 0.3),
        },
    },
}

# Training loss in nats, mean and deviation.
LOSS = {
    "TinyTen": {
        UNALIGNED: {"cifar10": (0.428, 0.003), "cifar100": (1.839, 0.010), "tiny-imagenet": (3.317, 0.008)},
        PAM_UNALIGNED: {"cifar10": (0.413, 0.001), "cifar100": (1.753, 0.016), "tiny-imagenet": (3.249, 0.005)},
        PAM_ALIGNED: {"cifar10": (0.372, 0.002), "cifar100": (1.679, 0.005), "tiny-imagenet": (3.214, 0.003)},
        ALIGNED: {"cifar10": (0.371, 0.002), "cifar100": (1.693, 0.008), "tiny-imagenet": (3.217, 0.013)},
    },
    "ResNet32": {
        UNALIGNED: {"cifar10": (0.179, 0.001), "cifar100": (1.124, 0.005), "tiny-imagenet": (2.383, 0.005)},
        PAM_UNALIGNED: {"cifar10": (0.170, 0.001), "cifar100": (1.043, 0.008), "tiny-imagenet": (2.350, 0.001)},
        PAM_ALIGNED: {"cifar10": (0.147, 0.002), "cifar100": (0.975, 0.008), "tiny-imagenet": (2.308, 0.003)},
        ALIGNED: {"cifar10": (0.147, 0.001), "cifar100": (1.011, 0.002), "tiny-imagenet": (2.299, 0.009)},
    },
    "GoogLeNet": {
        UNALIGNED: {"cifar10": (0.540, 0.001), "cifar100": (1.161, 0.004), "tiny-imagenet": (2.570, 0.009)},
        ALIGNED: {"cifar10": (0.516, 0.001), "cifar100": (1.033, 0.002), "tiny-imagenet": (2.278, 0.005)},
    },
}

# Average accuracy in percent of TinyTen on CIFAR100, by rate and by batch size 64, 128, 256.
GRID = {
    UNALIGNED: {0.01: (55.9, 55.3, 54.2), 0.1: (55.9, 56.0, 56.0), 0.5: (55.5, 55.7, 55.5)},
    ALIGNED: {0.01: (58.4, 57.9, 57.4), 0.1: (59.0, 58.7, 58.7), 0.5: (58.6, 58.7, 58.9)},
}
GRID_BATCHES = (64, 128, 256)
