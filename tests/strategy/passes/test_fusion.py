"""Pairs of ops become the op that does both; what is trained is the same, on one device and on many ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Role, Value
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import AxisSignature
from strategy.models.decoder import DecoderConfig
from strategy.nn.layers import Dropout, Linear
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.fusion import fuse
from strategy.sbp.tensor import Rate, TensorSpec
