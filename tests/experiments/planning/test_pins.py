"""Pin files: what they fix, and every way to get them wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.planning.pins import COUNTS, read_pins
from strategy.base.errors import InputError
from strategy.layout.config import Context, KeptLayers, Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.sbp.sbp import B, Split
from strategy.space.request import Pins


def read(folder: Path, text: str) -> Pins:
    path = folder / "pins.toml"
    path.write_text(text)
    return read_pins(path)


def test_an_empty_file_pins_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Pins()


def test_everything_that_can_be_pinned(tmp_path: Path) -> None:
    text = """
    [config]
    dp = 1
    tp = 2
    pp = 2
    micro_batch = 1
    num_micro_batches = 4
    schedule = "gpipe"
    cp = 2
    context = "all_to_all"
    ep = 1
    virtual_stages = 1
    recompute = "selective"
    recompute_values = ["*.gelu"]
    kept_layers = "any"
    offload = "activations"
    offload_values = ["*.norm1.*"]
    zero_stage = 3
    zero_owner = true
    tiles = 4
    tiled = ["*.fc1.matmul"]
    zero_min_size = 64
    [sbp]
    "*.mlp.fc1.weight" = ["B", "B", "S(1)"]
    [stage]
    "layers.0.*" = 0
    """
    assert read(tmp_path, text) == Pins(
        dp=1,
        tp=2,
        pp=2,
        micro_batch=1,
        num_micro_batches=4,
        virtual_stages=1,
        schedule=Schedule.GPIPE,
        recompute=Recompute.SELECTIVE,
        recompute_values=("*.gelu",),
        kept_layers=KeptLayers.ANY,
        offload=Offload.ACTIVATIONS,
        offload_values=("*.norm1.*",),
        zero_stage=3,
        zero_owner=True,
        tiles=4,
        tiled=("*.fc1.matmul",),
        zero_min_size=64,
        cp=2,
        ep=1,
        context=Context.ALL_TO_ALL,
        layouts={"*.mlp.fc1.weight": (B, B, Split(1))},
        stages={"layers.0.*": 0},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[confi]\ndp = 2", "pins.toml: unknown key (got 'confi'); did you mean 'config'?"),
        ("[config]\nmicrobatch = 2", "[config]: unknown key (got 'microbatch'); did you mean 'micro_batch'?"),
        ("[config]\ndp = 0", "[config] dp: not a count (got 0, expected a whole number >= 1"),
        ('[config]\ndp = "2"', "[config] dp: not a count (got '2'"),
        ("[config]\ndp = 2.0", "[config] dp: not a count (got 2.0"),
        ("[config]\ndp = true", "[config] dp: not a count (got True"),
        ('[config]\nschedule = "1f1c"', "[config] schedule: unknown schedule (got '1f1c'); did you mean '1f1b'?"),
        ("[config]\nschedule = 1", "[config] schedule: unknown schedule (got 1)"),
        ("[config]\nzero_stage = true", "[config] zero_stage: not a count (got True, expected a whole number >= 0 and"),
        ("[config]\nzero_stage = 4", "[config] zero_stage: not a count (got 4, expected a whole number >= 0 and <= 3)"),
        ("[config]\nzero_owner = 1", "[config] zero_owner: a wrong type (got 1, expected true or false)"),
        ("[config]\ntiles = 0", "[config] tiles: not a count (got 0, expected a whole number >= 1"),
        (
            "[config]\nzero_min_size = 0",
            "[config] zero_min_size: not a count (got 0, expected a whole number >= 1",
        ),
        (
            '[config]\norder = ["tensors"]',
            "[config] order: no order of the axes (got ['tensors'], expected each of",
        ),
        ("[config]\ncp = true", "[config] cp: not a count (got True, expected a whole number >= 1"),
        ("[config]\nep = true", "[config] ep: not a count (got True, expected a whole number >= 1"),
        ("[config]\nrecompute = 0", "[config] recompute: unknown recompute (got 0)"),
        ('[config]\nrecompute = "ful"', "[config] recompute: unknown recompute (got 'ful'); did you mean 'full'?"),
        ('[config]\noffload = "activation"', "[config] offload: unknown offload (got 'activation'); did you mean"),
        ('[config]\nkept_layers = "some"', "[config] kept_layers: unknown kept_layers (got 'some'"),
        ("[config]\nkept_layers = [1]", "[config] kept_layers: unknown kept_layers (got [1]"),
        ('[config]\nrecompute_values = "*"', "[config] recompute_values: not a list of patterns (got '*', expected"),
        ("[config]\nrecompute_values = [1]", "[config] recompute_values: not a list of patterns (got [1]"),
        ("config = 2", "[config]: not a table (got 2"),
        ('[sbp]\n"*" = "B"', "[sbp] '*': not a layout (got 'B', expected one SBP per mesh axis: data, tensor)"),
        ('[sbp]\n"*" = ["B"]', "[sbp] '*': not a layout (got ['B']"),
        ('[sbp]\n"*" = ["B", "S(-1)"]', "[sbp] '*': not an SBP (got 'S(-1)'"),
        (
            '[config]\ncp = 2\n[sbp]\n"*" = ["B", "B"]',
            "[sbp] '*': not a layout (got ['B', 'B'], expected one SBP per mesh axis: data, context, tensor)",
        ),
        ("[config]\ncp = 0", "[config] cp: not a count (got 0"),
        ('[config]\ncontext = "rings"', "[config] context: unknown context (got 'rings'); did you mean 'ring'?"),
        ('[sbp]\n"*" = ["B", 1]', "[sbp] '*': not an SBP (got 1"),
        (
            '[stage]\n"layers.0.*" = -1',
            "[stage] 'layers.0.*': not a count (got -1, expected a whole number >= 0",
        ),
        ('[stage]\n"layers.0.*" = "0"', "[stage] 'layers.0.*': not a count (got '0'"),
        ("[config", "pins.toml: cannot be read as TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_a_file_that_is_missing_or_a_folder_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml: no such pin file"):
        read_pins(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match="cannot be read as TOML"):
        read_pins(tmp_path)
    (tmp_path / "pins.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read as TOML"):
        read_pins(tmp_path / "pins.toml")


@pytest.mark.parametrize("key", [*COUNTS, "schedule"])
def test_every_single_typo_in_a_key_is_refused(tmp_path: Path, key: str) -> None:
    for at in range(len(key)):
        with pytest.raises(InputError, match="unknown key"):
            read(tmp_path, f"[config]\n{key[:at]}q{key[at + 1 :]} = 1")


def test_all_that_is_wrong_with_a_file_is_said_at_once(tmp_path: Path) -> None:
    text = """
    [config]
    schedulex = 1
    tp = 0
    [sbp]
    "token" = ["B"]
    "ids" = ["S(0)", "X"]
    [stage]
    "layers.0.*" = -1
    [placement]
    "layers.1.*" = [2, 2]
    "layers.0.*" = 3
    """
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert "pins.toml: 7 problems" in message
    for part in (
        "[config]: unknown key (got 'schedulex'); did you mean 'schedule'?",
        "[config] tp: not a count (got 0",
        "[sbp] 'token': not a layout",
        "[sbp] 'ids': not an SBP (got 'X'",
        "[stage] 'layers.0.*': not a count",
        "[placement] 'layers.0.*': not a list of devices (got 3",
        "[placement] 'layers.1.*': a device stands twice in a placement (got [2, 2])",
    ):
        assert part in message


def test_a_placement_is_pinned_by_its_devices(tmp_path: Path) -> None:
    pins = read(tmp_path, '[placement]\n"layers.1.*" = [2, 3]')
    assert pins == Pins(placements={"layers.1.*": (2, 3)})


@pytest.mark.parametrize(
    ("lines", "laps"),
    [('schedule = "zbv"', 2), ('schedule = "interleaved"', 2), ('schedule = "interleaved"\nvirtual_stages = 3', 3)],
)
def test_schedules_of_several_virtual_stages(tmp_path: Path, lines: str, laps: int) -> None:
    assert read(tmp_path, f"[config]\n{lines}").laps == laps


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("virtual_stages = 2", "1f1b has 1 virtual stage per device, not 2"),
        ('schedule = "zbv"\nvirtual_stages = 3', "zbv has 2 virtual stages per device, not 3"),
        ('schedule = "zb-h1"\nvirtual_stages = 2', "zb-h1 has 1 virtual stage"),
        ('schedule = "interleaved"\npp = 4\nnum_micro_batches = 6', "groups of as many as stages: 6 of 4 do not"),
        ('schedule = "zbv"\n[placement]\n"layers.0.*" = [0]', "devices do not tell virtual stages apart"),
        ("virtual_stages = 0", "not a count"),
        ('schedule = "zb-h2"', "unknown schedule"),
    ],
)
def test_schedules_that_there_are_not(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, f"[config]\n{lines}")
