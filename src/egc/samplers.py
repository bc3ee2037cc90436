"""Samplers: names, and the schedulers of diffusers that each stands for.

A sampler is a function `(betas, steps) -> scheduler`. A scheduler has `set_timesteps(steps,
device)`, `timesteps`, the noise levels its steps start from, and `step(eps, t, x)`, which gives a
tuple whose first item is the next, cleaner x; see `examples/own_sampler.py` for one of your own.

`ddpm` is the paper's Algorithm 2 when it takes all T steps; with fewer it uses the posterior's
variance, since sqrt(beta) is far too much noise for long steps. `ddim`, `dpm++` and `unipc` are
deterministic given x_T.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from egc.errors import ConfigError
from egc.registry import samplers

if TYPE_CHECKING:
    import numpy as np
    import torch

    Sampler = Callable[[np.ndarray, int], Any]

__all__ = ["make_scheduler", "samplers", "takes_generator"]


def make_scheduler(
    name: str, betas: np.ndarray, steps: int, device: torch.device | str = "cpu"
) -> Any:
    """The scheduler of a sampler, set to so many steps of the noise schedule `betas` (T,)."""
    sampler: Sampler = samplers[name]
    if not 1 <= steps <= len(betas):
        raise ConfigError(f"The number of sampling steps must be 1 to {len(betas)}; got {steps}.")
    scheduler = sampler(betas, steps)
    scheduler.set_timesteps(steps, device=device)
    return scheduler


def takes_generator(scheduler: Any) -> bool:
    """Whether its steps draw noise, and so take the images' generators."""
    return "generator" in inspect.signature(scheduler.step).parameters


def _common(betas: np.ndarray) -> dict[str, Any]:
    return {
        "num_train_timesteps": len(betas),
        "trained_betas": betas,
        "prediction_type": "epsilon",
    }


@samplers.register("ddim")
def ddim(betas: np.ndarray, steps: int) -> Any:
    from diffusers import DDIMScheduler

    return DDIMScheduler(**_common(betas), clip_sample=False, timestep_spacing="trailing")


@samplers.register("ddpm")
def ddpm(betas: np.ndarray, steps: int) -> Any:
    from diffusers import DDPMScheduler

    return DDPMScheduler(
        **_common(betas),
        clip_sample=False,
        timestep_spacing="linspace",  # its steps must end at t = 0, where no noise is added
        variance_type="fixed_large" if steps == len(betas) else "fixed_small",
    )


@samplers.register("dpm++")
def dpm_plus_plus(betas: np.ndarray, steps: int) -> Any:
    from diffusers import DPMSolverMultistepScheduler

    return DPMSolverMultistepScheduler(
        **_common(betas), timestep_spacing="trailing", final_sigmas_type="zero"
    )


@samplers.register("unipc")
def unipc(betas: np.ndarray, steps: int) -> Any:
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(
        **_common(betas), timestep_spacing="trailing", final_sigmas_type="zero"
    )
