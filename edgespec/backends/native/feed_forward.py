"""Feed-forward parts as stages: dense ones, and mixtures of experts."""

from __future__ import annotations

from edgespec.backends.native.experts import Experts
from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.moe import stages as moe
from edgespec.backends.native.kernels.stages import cutoff, gated
from edgespec.backends.native.shapes import float_bits
from edgespec.backends.native.stage_maker import Joining, StageMaker, Stages
from edgespec.models.layers import Dense, LayerSpec, Moe, Norm


class FeedForward:
    """Makes the stages of layers' feed-forward parts."""

    def __init__(self, maker: StageMaker, experts: Experts | None) -> None:
        self._maker, self._experts = maker, experts

    def stages(self, number: int, layer: LayerSpec) -> tuple[Stages, Joining]:
        """Those of a layer, which reads NORMED."""
        assert layer.ffn is not None
        if isinstance(layer.ffn, Moe):
            return self._mixture(number, layer.ffn, layer)
        ending = layer.ffn_post_norm, layer.residual_scale, layer.output_scale
        return self._dense(layer.ffn, *ending)

    def _dense(
        self,
        own: Dense,
        post: Norm | None,
        factor: float = 1.0,
        scale: str = "",
        apart: bool = False,
    ) -> tuple[Stages, Joining]:
        output, joining = self._maker.output(own.down, table.GATED, post, factor, scale, apart)
        return [*(self._cut(own) if own.cutoff else self._gated(own)), output], joining

    def _gated(self, own: Dense) -> Stages:
        weights = self._maker.weights
        operands = {
            gated.GATE: weights.place(own.gate),
            gated.UP: weights.place(own.up),
            gated.GATE_BIAS: weights.bias(own.gate),
            gated.UP_BIAS: weights.bias(own.up),
            gated.WIDTH: own.width,
            gated.ACTIVATION: self._maker.operation(own.activation),
        }
        return [self._maker.stage(gated.gated, operands)]

    def _cut(self, own: Dense) -> Stages:
        """Gates of which all must be known before any is."""
        maker, halves = self._maker, ((own.gate, table.GATED), (own.up, table.UP))
        operands = {
            cutoff.WIDTH: own.width,
            cutoff.ACTIVATION: maker.operation(own.activation),
            cutoff.CUTOFF: float_bits(own.cutoff),
        }
        products = [maker.product(each, table.NORMED, maker.place(to)) for each, to in halves]
        return [*products, maker.stage(cutoff.cut, operands)]

    def _mixture(self, number: int, own: Moe, layer: LayerSpec) -> tuple[Stages, Joining]:
        """Experts, of which the router reads NORMED before they do; a dense part beside comes first
        and is in BRANCH meanwhile.
        """
        assert self._experts is not None
        maker, done = self._maker, Stages()
        post, factor, scale = layer.ffn_post_norm, layer.residual_scale, layer.output_scale
        plain = own.beside is None and post is None and not scale
        beside: Joining = {}
        if own.beside is not None:
            done, beside = self._dense(own.beside, own.beside_post_norm, apart=True)
        where = maker.place(table.STREAM if plain else table.UP if beside else table.BRANCH)
        words = self._experts.words(number, own, where, plain, factor if plain else 1.0)
        if own.router_norm is not None:
            done.append(maker.pre_norm(own.router_norm))
        done.append(maker.stage(moe.router, {moe.LAYER: words}))
        if own.router_norm is not None or own.experts_norm is not None:
            done.append(maker.pre_norm(own.experts_norm or layer.ffn_norm))
        fetch = (moe.fetch,) if self._experts.are_on_disk else ()
        for stage in (moe.route, *fetch, moe.gate_up, moe.down):
            done.append(maker.stage(stage, {moe.LAYER: words}))
        if plain:
            return done, {}
        branch, branch_stride = maker.place(table.BRANCH)
        if beside:
            operands = {
                moe.LEFT: branch,
                moe.LEFT_STRIDE: branch_stride,
                moe.LEFT_GAIN: beside["joining_gain"],
                moe.RIGHT: where[0],
                moe.RIGHT_STRIDE: where[1],
                moe.RIGHT_GAIN: maker.gain(own.experts_post_norm),
                moe.ADD_SCALED: isa.expert_address(maker.isa, "add_scaled"),
            }
            done.append(maker.stage(moe.join, operands))
        return done, {
            "joining": branch,
            "joining_stride": branch_stride,
            "joining_gain": maker.gain(post),
            "joining_factor": float_bits(factor),
        }
