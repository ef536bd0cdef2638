"""What devices compute and hold: peak rates, what is reached of them, memory; from devices.yaml."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

from ccbench.errors import UsageError
from ccbench.units import parse_size

ML_ENGINEERING = "stas00/ml-engineering, compute/accelerator/README.md"


@dataclass(frozen=True)
class Device:
    """One accelerator as a rank sees it: a die where a package holds several.

    memory_bytes, memory_bytes_per_second: of its own memory. peak_flops: multiplications and additions a
    second by dtype, without sparsity. achieved: share of the peak that the best of many large matrix
    products reached. models: how machines call it.
    """

    name: str
    memory_bytes: int
    memory_bytes_per_second: float
    peak_flops: tuple[tuple[str, float], ...]
    achieved: float
    source: str = ""
    achieved_source: str = ML_ENGINEERING
    models: tuple[str, ...] = ()

    def peak(self, dtype: str) -> float:
        """Floating-point operations a second; UsageError lists what the device computes with."""
        for name, flops in self.peak_flops:
            if name == dtype:
                return flops
        known = ", ".join(name for name, _ in self.peak_flops)
        raise UsageError(f"device {self.name}: no rate for dtype {dtype!r}; one of {known}")

    @property
    def usual_dtype(self) -> str:
        """What it trains in unless said: bfloat16, or float16 on devices without it."""
        return self.peak_flops[0][0]

    def with_rates(self, tflops: float | None = None, memory_bytes: int | None = None) -> Device:
        """The same with a peak (of every dtype) or a memory that the user states."""
        peaks = self.peak_flops
        if tflops is not None:
            peaks = tuple((name, tflops * 1e12) for name, _ in peaks)
        return replace(self, peak_flops=peaks, memory_bytes=memory_bytes or self.memory_bytes)


@lru_cache(maxsize=1)
def named_devices() -> dict[str, Device]:
    """The devices of devices.yaml by name."""
    import yaml

    text = (resources.files("ccbench.parallelism") / "devices.yaml").read_text(encoding="utf-8")
    found = {}
    for name, values in yaml.safe_load(text).items():
        rate = values["memory_rate"].removesuffix("/s")
        found[name] = Device(
            name,
            parse_size(values["memory"]),
            float(parse_size(rate)),
            tuple((dtype, float(peak) * 1e12) for dtype, peak in values["tflops"].items()),
            float(values["achieved"]),
            values["source"],
            values.get("achieved_source", ML_ENGINEERING),
            tuple(values["models"]),
        )
    return found


def named_device(name: str) -> Device:
    """A device by its name here or as machines call it; UsageError lists the names."""
    wanted = name.strip().lower()
    for device in named_devices().values():
        if wanted == device.name or wanted in (model.lower() for model in device.models):
            return device
    raise UsageError(f"device: {name[:80]!r} is not known; one of {', '.join(sorted(named_devices()))}")
