"""Price: seconds of a step from the work that it consists of, with the fitted constants.

    stage of a micro-batch = max(kernels on the device + exposed collectives, the host that issues them)
    step = pipeline of stages + exposed gradient exchange + optimiser + what a step costs beside

Each term is a method below; which share of a collective is exposed is the framework's (`frameworks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategy.closed_form import memory
from strategy.closed_form.constants import Constant, Constants, nominal
from strategy.closed_form.exchange import Mask, exchanges
from strategy.closed_form.frameworks import PROFILES, USUAL_SHARPNESS
from strategy.closed_form.job import Job, Jobs, gradient_bytes
from strategy.closed_form.kernels import KernelRates, Lookup
from strategy.closed_form.memory import footprint, lacking
from strategy.closed_form.pipeline import StageSeconds, step_seconds
from strategy.closed_form.products import Floats
from strategy.closed_form.work import JobWork, measure
from strategy.hardware.devices import DeviceSheet, Generation, Maker
from strategy.hardware.presets import SLOWDOWN

_GRACE = "grace"
"""NVIDIA's own processor, on the boards whose devices form domains of more than one node."""
_NEWER_HOSTS = (Generation.HOPPER, Generation.BLACKWELL, _GRACE)
"""Whose nodes have other processors than those of the A100."""
_OF_LAST = 25 / 40
"""Of the kernels of embedding, logits and loss, the share of the last stage: it has no embedding."""
_SHARDING_KERNELS = 6
"""Calls to the host's libraries to gather a layer's parameters, or to scatter its gradients."""
_TIMED_BEFORE = 0.7
"""Years before 2026-08 until which Megatron-Core's tests timed every part of a step between barriers: release 0.16."""
_NEW_ROUTING = 0.2
"""Years before 2026-08 of the release that changed how experts are issued: Megatron-Bridge 26.06."""
_MOVED_BESIDE = 3.5
"""What an optimiser moves beside its moments, where reading or writing one is 1: a gradient, a weight, twice over."""
_OF_FIRST_MAPS = 0.25
"""Of a backward pass's products, the gradients of the weights whose inputs' gradients are exchanged meanwhile."""
CONSTANTS = (
    Constant("bytes.optimiser", 30.0, 0.3, "bytes that Adam moves per parameter"),
    Constant("head.apart", 0.7, 0.3, "share of the head on top of layers that divide evenly; layouts share the rest"),
    Constant("kernel.floor", 2e-6, 0.5, "device seconds of a kernel beside its work"),
    Constant("host.sharpness", 3.0, 0.4, "exponent of the maximum of host and device: 1 is one after the other"),
    Constant("host.sharpness.routed", 1.5, 0.3, "the same where the host waits for counts of routed tokens"),
    Constant(
        "host.sharpness.tested", 1.2, 0.1, "the same of functional tests, whose device waits for little", "golden", 3.0
    ),
    Constant("engine.micro", 0.03, 0.7, "seconds per micro-batch and stage of DeepSpeed's pipeline engine"),
    Constant("gather.sharpness", 3.0, 0.4, "the same of compute and the gathering of sharded parameters, FSDP"),
    Constant("gather.sharpness.zero", 3.0, 0.4, "the same of DeepSpeed ZeRO, which fetches ahead", "sc21_t2", 2.5),
    Constant("recompute.node", 0.9, 1.5, "share of a stated full recompute that one-node runs of Megatron's fork do"),
    *(Constant(f"cpu.{generation}", 1.0, 0.3, f"host seconds per kernel of {generation}'s hosts over those of ampere")
      for generation in _NEWER_HOSTS),
    Constant(
        "release.tested", 1.1, 0.1, "host seconds per kernel of tests that time all parts, over others", "golden", 1.0
    ),
    Constant(
        "host.messages", 10.0, 0.3, "calls to the host's libraries for a message to the next stage and one from it"
    ),
    Constant("host.plain", 0.8, 0.2, "host seconds per kernel of PyTorch's own modules over Transformer Engine's"),
    Constant("host.routed", 6e-5, 0.5, "host seconds per kernel of a mixture of experts without dropped tokens"),
    Constant("host.routed.tested", 9e-5, 0.5, "the same in functional tests of Megatron-Core", "golden", 6e-5),
    Constant("host.capped", 2e-5, 0.7, "the same of one that drops tokens above a capacity"),
    Constant("release.yearly", 1.1, 0.1, "time of Megatron-Bridge a year before its newest release over today's"),
    Constant("release.routed", 1.5, 0.4, "host.routed before the release of 2026-06 over that after it"),
    Constant("jitter.vision", 0.02, 0.7, "wait of replicas for each other per doubling, share of a step, DDP"),
    Constant("jitter.language", 0.01, 0.7, "the same of systems for language models"),
    Constant("loader.gpu", 820.0, 0.2, "images/s that a loader on the host feeds to one GPU, where it is slow"),
    Constant("loader.node", 2800.0, 0.2, "images/s that MXNet's loader feeds to one node"),
    Constant("sync.paddle", 4e-10, 0.7, "PaddlePaddle's seconds per byte of gradients beside the links' time"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Terms:
    """What a step consists of, in seconds, one entry per job.

    `stages` are those of the pipeline; `gathered` of collecting sharded parameters, `reduced` of what is exposed of
    reducing gradients, `update` of the optimiser. All of it takes `stretch` times as long, and `beside` comes on top.
    """

    stages: StageSeconds
    gathered: Floats
    reduced: Floats
    update: Floats
    stretch: Floats
    beside: Floats


@dataclass(frozen=True, slots=True)
class Blocks:
    """Seconds of one micro-batch through all blocks, forward and backward, were they on one stage; one entry per job.

    `compute` of the device's kernels, `tensor` and `others` of exposed communication: tensor-parallel, and of experts
    and contexts. `host` is what issuing all of it takes.
    """

    compute: Floats
    tensor: Floats
    others: Floats
    host: Floats

    def seconds(self, sharpness: Floats) -> Floats:
        """The slower of device and host, as they overlap."""
        return _soft_maximum(self.compute + self.tensor + self.others, self.host, sharpness)


@dataclass(frozen=True, slots=True)
class Causes:
    """What a step's seconds go to on the stage that works longest: by cause, then by part, one entry per job.

    A wait of replicas for the slowest of them is communication: it passes in the exchange of gradients.
    """

    compute: Mapping[str, Floats]
    exposed: Mapping[str, Floats]
    bubble: Mapping[str, Floats]
    other: Mapping[str, Floats]


class Pricing:
    """Jobs, their work and exchanges, ready to be priced again and again as a fit moves its constants.

    `work` is that of the jobs, where it has been measured already.
    """

    def __init__(self, jobs: Jobs, links: Constants, work: JobWork | None = None) -> None:
        self.jobs = jobs
        self.work = measure(jobs) if work is None else work
        self.exchange = exchanges(jobs, self.work, links)
        self._kernels = KernelRates(jobs)
        self._sharded = jobs.zero >= 3
        # Systems of today that share all weights out compute again what does not fit, whatever is said of recomputing.
        fused = np.array([PROFILES[job.framework].fused for job in jobs.jobs])
        held = footprint(jobs, self.work, nominal(memory.CONSTANTS))
        self._lacking = np.where(self._sharded & fused, lacking(jobs, held), 0.0)
        profiles = [PROFILES[job.framework] for job in jobs.jobs]
        zero = np.array([profile.deepspeed for profile in profiles])
        self._gathering = Lookup(["gather.sharpness.zero" if ours else "gather.sharpness" for ours in zero])
        self._slack, self._host, self._tp, self._dp, self._gather, self._step = (
            Lookup([getattr(profile, part) for profile in profiles])
            for part in ("slack", "host", "tp", "dp", "gather", "step")
        )
        self._cpu = Lookup([f"cpu.{_processor(job.device)}" for job in jobs.jobs])
        self._sharpness = Lookup([_sharpness(job) for job in jobs.jobs])
        self._routed = Lookup([profile.routed for profile in profiles])
        self._timed = np.array([profile.deterministic for profile in profiles]) & (jobs.release > _TIMED_BEFORE)
        self._fabric = Lookup([f"fabric.{job.fabric}" for job in jobs.jobs])
        # Layers that do not divide are dealt out along with embedding and head; of those that do nobody says.
        even = np.array([profile.even for profile in profiles])
        self._even = even & (np.mod(jobs.layers, jobs.pp * jobs.virtual) != 0)
        self._unsaid = even & ~self._even
        self._edge_kernels = self.work.edge_kernels * np.where((jobs.pp > 1) & ~self._even, _OF_LAST, 1.0)
        deepest = np.where(self._even, jobs.layers / jobs.pp, np.ceil(jobs.layers / jobs.pp))
        self._per_stage = deepest / jobs.layers
        self._gradient = gradient_bytes(jobs)
        self._doubtful = jobs.where(framework="megatron-fork") & (jobs.gpus <= jobs.gpus_per_node)
        self._engine = jobs.where(framework="megatron-deepspeed")
        self._bridge = jobs.where(framework="megatron-bridge")
        self._vision = np.array([profile.vision for profile in profiles])
        self._fed = np.array([profile.host_loader for profile in profiles]) & (jobs.conv_flop > 0)
        self._by_node = np.array([profile.node_loader for profile in profiles])
        self._slow_sync = np.array([profile.staged_sync for profile in profiles])
        self._streams = np.array([profile.streams for profile in profiles])

    def seconds(self, c: Constants) -> Floats:
        """Seconds of one step of every job."""
        j, terms = self.jobs, self.terms(c)
        pipeline = step_seconds(terms.stages, self.work.micro_batches, j.pp, j.virtual)
        gathering = _soft_maximum(pipeline, terms.gathered, self._gathering.of(c))
        busy = np.where(self._sharded, gathering, pipeline + terms.reduced) + terms.update
        step = terms.stretch * busy + terms.beside
        return np.where(self._fed, _soft_maximum(step, self._loading(c), 6.0), step)

    def causes(self, c: Constants) -> Causes:
        """What the seconds of a step go to, of jobs that neither shard parameters nor wait for a loader."""
        j, work, terms, blocks = self.jobs, self.work, self.terms(c), self._blocks(c)
        stages, count, share = terms.stages, work.micro_batches, self._per_stage
        shared = (1 - stages.apart) * stages.head / j.pp
        head = stages.apart * stages.head + shared
        message = np.where(j.pp > 1, stages.message, 0.0)
        late = blocks.seconds(self._sharpness.of(c)) - (blocks.compute + blocks.tensor + blocks.others)
        compute = {
            "blocks": count * share * blocks.compute,
            "head": count * head,
            "gradients": count * self._added(c),
            "update": terms.update,
        }
        exposed = {
            "tensor": count * share * blocks.tensor,
            "others": count * share * blocks.others,
            "messages": count * message,
            "reduced": terms.reduced,
        }
        bubble = {"fill and drain": (j.pp - 1) * (stages.body + shared + message) / j.virtual}
        other = {"host": count * (share * late + self._engine_s(c))}
        busy = sum((seconds for cause in (compute, exposed, bubble, other) for seconds in cause.values()), np.zeros(1))
        exposed["replicas"] = (terms.stretch - 1) * busy
        other["beside"] = terms.beside
        return Causes(compute, exposed, bubble, other)

    def terms(self, c: Constants) -> Terms:
        """What the steps consist of."""
        j = self.jobs
        # Where every part of a step is timed between barriers, interleaved stages wait message by message.
        issued = c["host.messages"] * np.where(self._timed & (j.virtual > 1), 2, 1)
        stages = StageSeconds(
            body=self._blocks(c).seconds(self._sharpness.of(c)) * self._per_stage + self._added(c) + self._engine_s(c),
            head=_soft_maximum(
                self._slack.of(c) * self._kernels.head(self.work, c),
                self._edge_kernels * self._issue_s(c),
                self._sharpness.of(c),
            ),
            message=2 * j.virtual * (c["pp.exposed"] * self.exchange.pp + issued * self._issue_s(c)),
            apart=np.where(self._even, 0.0, np.where(self._unsaid, np.minimum(c["head.apart"], 1.0), 1.0)),
        )
        aged = np.where(self._bridge, c["release.yearly"] ** j.release, 1.0)
        wait = np.where(self._vision, c["jitter.vision"], c["jitter.language"]) * np.log2(np.maximum(j.dp, 1))
        return Terms(
            stages,
            self._gathered(c),
            self._reduced(c),
            self._update(c),
            np.where(self._streams, 1.0, aged * (1 + wait)),
            np.where(self._streams, 0.0, self._step.of(c)),
        )

    def _added(self, c: Constants) -> Floats:
        """Seconds in which a stage adds gradients up: they are read, added to and written once per micro-batch."""
        held = (self.work.parameters + self.work.expert_parameters) * self._per_stage * self.jobs.pp
        still = self._sharded | (self.jobs.frozen > 0)
        return np.where(still, 0.0, (2 + 2 * self._gradient) * held / self._kernels.bandwidth(c))

    def _engine_s(self, c: Constants) -> Floats:
        return np.where(self._engine, c["engine.micro"], 0.0)

    def _blocks(self, c: Constants) -> Blocks:
        j, work, moves = self.jobs, self.work, self.exchange
        again = np.maximum(work.recompute, self._lacking)
        again = again * np.where(self._doubtful, np.minimum(c["recompute.node"], 1.0), 1.0)
        kernels = work.forward.kernels * (1 + again) + work.backward.kernels
        forward, backward = self._kernels.seconds(work.forward, c), self._kernels.seconds(work.backward, c)
        slack, floor = self._slack.of(c), c["kernel.floor"]
        of_adapters = work.forward.adapter_kernels * (1 + again) + work.backward.adapter_kernels
        adapting, spared = self._kernels.adapters(work.forward, work.backward, again, c)
        # Adapters of narrow models would move more than they spare: nobody is taken to lose by them.
        extra = np.minimum(slack * adapting + floor * of_adapters, slack * spared)
        compute = slack * (forward * (1 + again) + backward) + floor * (kernels - of_adapters) + extra
        of_pass = moves.tp * self._over(moves.tp_far, c) * work.collectives
        meanwhile = slack * _OF_FIRST_MAPS * self._kernels.products(work.backward, c)
        beside = of_pass * (1 + again) + _beside(of_pass, meanwhile)
        tensor = np.where(self._streams, beside, of_pass * (2 + again))
        expert = moves.ep * self._over(moves.ep_far, c) * 2 * (2 + again) * c["ep.skew"]
        context = moves.cp * j.attention_layers * 3 * c["pp.exposed"]
        exposed = np.where(moves.ep_far, c["ep.exposed.far"], c["ep.exposed"]) * expert + context
        issued = kernels + np.where(j.tp > 1, 3, 0) * work.collectives * (2 + again)
        issued = issued + np.where(self._sharded, _SHARDING_KERNELS * (3 + again) * j.layers, 0.0)
        routed = work.routed_kernels * (2.9 + again)
        host = self._issue_s(c) * (issued - routed) + self._host_routed(c) * routed
        return Blocks(compute, self._tp.of(c) * tensor, exposed, host)

    def _over(self, far: Mask, c: Constants) -> Floats:
        """What an exchange takes over its time at the data sheet's rate: more where it leaves the node."""
        return np.where(far, 1 / self._fabric.of(c), 1.0)

    def _issue_s(self, c: Constants) -> Floats:
        """Host seconds per kernel, by system, processor and release."""
        aged = np.where(self._timed, c["release.tested"], 1.0)
        plain = np.where(self.jobs.plain_modules > 0, c["host.plain"], 1.0)
        return np.asarray(self._host.of(c) * self._cpu.of(c) * aged * plain, dtype=float)

    def _host_routed(self, c: Constants) -> Floats:
        """Host seconds per kernel of experts: routing without a capacity waits for counts, less so in new releases."""
        waiting = self._bridge & (self.jobs.release > _NEW_ROUTING)
        free = self._routed.of(c) * np.where(waiting, c["release.routed"], 1.0)
        return np.where(self.jobs.capped > 0, c["host.capped"], free) * self._cpu.of(c)

    def _reduced(self, c: Constants) -> Floats:
        """Exposed seconds of reducing gradients, once per step."""
        work, moves = self.work, self.exchange
        dense = moves.dp * self._over(moves.dp_far, c) * self._dp.of(c)
        experts = moves.dp_expert * self._over(moves.dp_expert_far, c) * c["dp.exposed.experts"]
        staged = np.where(self._slow_sync & (self.jobs.dp > 1), c["sync.paddle"], 0.0)
        exchanged = (dense + experts) * self._gradient / 2 + staged * 4 * (work.parameters + work.edge_parameters)
        again = work.recompute * self._kernels.seconds(work.forward, c)
        last = self._slack.of(c) * (again + self._kernels.seconds(work.backward, c)) * self._per_stage
        exchanged = np.where(self._streams, _beside(exchanged, last), exchanged)
        return np.where(self.jobs.frozen > 0, 0.0, exchanged)

    def _gathered(self, c: Constants) -> Floats:
        """Seconds of gathering sharded parameters for both passes and of scattering gradients.

        Stages of a pipeline keep what they gathered until their last backward pass.
        """
        moves = self.exchange
        times = np.where(self.jobs.pp > 1, 1.0, self.work.micro_batches)
        passes = 3 - self.jobs.frozen
        return moves.gather * self._over(moves.dp_far, c) * self._gather.of(c) * passes * times

    def _update(self, c: Constants) -> Floats:
        """Seconds of the optimiser, by the bytes that it moves."""
        j, work = self.jobs, self.work
        shards = j.zero >= 1
        own = work.parameters + work.edge_parameters / j.pp * np.where(j.tied > 0, 1, 2)
        dense = own / np.where(shards, j.dp * j.cp, 1.0)
        experts = work.expert_parameters / np.where(shards, np.maximum(j.dp * j.cp * j.tp / (j.ep * j.etp), 1), 1.0)
        moved = c["bytes.optimiser"] * (_MOVED_BESIDE + 2 * j.moments) / (_MOVED_BESIDE + 4)
        return np.where(j.frozen > 0, 0.0, moved * (dense + experts) / self._kernels.bandwidth(c))

    def _loading(self, c: Constants) -> Floats:
        """Seconds in which loaders that run on the host decode a step's images."""
        j = self.jobs
        per_gpu = j.micro_batch / c["loader.gpu"]
        per_node = j.micro_batch * np.minimum(j.gpus, j.gpus_per_node) / c["loader.node"]
        return np.where(self._by_node, np.maximum(per_gpu, per_node), per_gpu)


def _beside(communication: Floats, computation: Floats) -> Floats:
    """Seconds that communication adds to computation that runs meanwhile."""
    return np.maximum(SLOWDOWN * communication, communication - computation)


def _processor(device: DeviceSheet) -> str:
    grace = device.maker is Maker.NVIDIA and device.domain > 16
    return _GRACE if grace else device.generation


def _sharpness(job: Job) -> str:
    """The constant of how host and device take turns: routing without a capacity waits for counts."""
    own = PROFILES[job.framework].sharpness
    return f"{own}.routed" if own == USUAL_SHARPNESS and job.shape.moe_layers and not job.shape.capped else own


def _soft_maximum(a: Floats, b: Floats, sharpness: Floats | float) -> Floats:
    """A maximum whose arguments overlap a little less than perfectly: the sharper, the nearer to the larger."""
    top = np.maximum(np.maximum(a, b), 1e-12)
    return np.asarray(top * ((a / top) ** sharpness + (b / top) ** sharpness) ** (1 / sharpness), dtype=float)
