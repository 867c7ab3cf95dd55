"""Sizes of the studies that take a second, for tests."""

from dataclasses import replace

from modeling_leaner.training.studies import (
    conditioning,
    depth_width,
    heads_optimization,
    low_rank,
)
from modeling_leaner.training.studies.conditioning import Drawn, Shape, TrainingPlan
from modeling_leaner.training.studies.heads_optimization import Mixture, Planted


TINY = {
    "conditioning": replace(
        conditioning.QUICK,
        drawn=Drawn(
            draws=2,
            gaussian=((8, 2), (4, 16)),
            growing=(4, 16),
            tokens=8,
            width=8,
            heads=(1, 2),
            size=4,
            heads_of_size=(2, 4),
        ),
        shape=Shape(layers=1, width=8, heads=2, head_size=4, length=16),
        training=TrainingPlan(rate=2e-3, steps=4, batch=2, looks=2, held_out=4),
        tuning_steps=2,
    ),
    "heads-optimization": replace(
        heads_optimization.QUICK,
        seeds=(1, 2),
        mixture=Mixture(tokens=4, width=6, train=20, test=20),
        planted=Planted(tokens=3, width=3, train=20, test=20),
        heads=(1, 2),
        steps=9,
        gap_examples=(5, 10),
        margin_examples=6,
        margin_heads=(1, 2),
        draws=10,
        identity_steps=5,
        variants=True,
    ),
    "low-rank": replace(
        low_rank.QUICK,
        draws=2,
        sizes=((4, 4), (4, 6)),
        length=4,
        limits=(1, 2, 3),
        targets=2,
        sharpness=(1.0,),
        rounds=1,
        joint=((4, 2, 4),),
    ),
    "depth-width": replace(
        depth_width.QUICK,
        training=depth_width.Training(
            text_bytes=12_000, holdout=2, length=8, batch=4, steps=4, tuning_steps=2, rate=1e-2
        ),
        shapes=((1, 24), (3, 16), (8, 8)),
        input_rank=2,
        ranks=((1, 1), (1, 2), (2, 1), (2, 2), (3, 1)),
    ),
}
