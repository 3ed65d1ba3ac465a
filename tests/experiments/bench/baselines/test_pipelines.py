"""A pipeline of alike stages is what our search makes of the same parts."""

from __future__ import annotations

from experiments.bench.baselines.pipelines import LayerRun, priced
from experiments.bench.baselines.pricing import LayerPricing, Strategy
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.search.template.stages import pipelined


def test_alike_stages_are_priced_as_our_search_does(ample: LayerPricing) -> None:
    strategy = Strategy(2, 2)
    prices = ample.prices(strategy, 2, 8)
    assert prices is not None
    stages = [[LayerRun(strategy, prices, 4, has_first=True)], [LayerRun(strategy, prices, 4, has_last=True)]]
    config = PlanConfig(2, 2, 2, 1, 8, Schedule.ONE_F_ONE_B)
    expected = pipelined(prices.parts, config, 8, prices.between_ns, ample.overlap([strategy], config.pp))
    assert priced(ample, stages, 2, 8) == (expected.step_ns, max(expected.peak_bytes))


def test_unlike_neighbours_cost_a_crossing(ample: LayerPricing) -> None:
    one, other = Strategy(4, 1), Strategy(2, 2)
    prices = {each: ample.prices(each, 4, 4) for each in (one, other)}
    assert None not in prices.values()

    def step_ns(*runs: tuple[Strategy, int]) -> int:
        first, last = runs[0][0], runs[-1][0]
        layers = [LayerRun(s, prices[s], n, s is first, s is last) for s, n in runs]  # type: ignore[arg-type]
        return priced(ample, [layers], 4, 4)[0]

    mixed = step_ns((one, 4), (other, 4))
    crossings = sum(ample.crossing_ns(*pair, 4, 4, apart=False) for pair in ((one, other), (other, one)))
    assert crossings > 0
    assert mixed > min(step_ns((one, 8)), step_ns((other, 8))) + 4 * crossings // 2
