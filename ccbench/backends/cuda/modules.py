"""Kernels loaded on one device: each module once whatever the number of lanes, and not all for ever."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property, partial

from ccbench.backends.base import OutOfMemory
from ccbench.backends.cuda.runtime import CUDA_OUT_OF_MEMORY, Cuda, DeviceFacts, do_all
from ccbench.backends.kernels.compiler import Nvrtc, architecture_for, compile_program, nvrtc
from ccbench.backends.kernels.sources import GLOBAL_NAME, Program

MOST_MODULES = 64
"""Modules that stay loaded: more than a suite's kernels of one type; each takes some hundred KiB of the
device."""


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel and how many blocks of ``lanes`` fit on a multiprocessor."""

    function: int
    lanes: int
    blocks_per_processor: int


@dataclass
class Loaded:
    """One module; blocks: lanes -> how many blocks of so many fit on a multiprocessor."""

    module: int
    function: int
    blocks: dict[int, int] = field(default_factory=dict)


class Modules:
    """Modules by what their code depends on; the one that was used longest ago goes first."""

    def __init__(self, cuda: Cuda, facts: DeviceFacts, most: int = MOST_MODULES) -> None:
        self._cuda = cuda
        self._facts = facts
        self._most = most
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()

    def kernel(self, program: Program, lanes: int) -> Kernel:
        """The kernel of ``program``, compiled and loaded the first time.

        Nothing may run on the device that is not the last kernel asked for: an older module may be unloaded.
        """
        loaded = self._of(program)
        if lanes not in loaded.blocks:
            ask = self._cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            loaded.blocks[lanes] = ask(loaded.function, lanes, 0)
        return Kernel(loaded.function, lanes, loaded.blocks[lanes])

    @cached_property
    def compiler(self) -> Nvrtc:
        """What compiles for this device; MissingDependency or CompilationFailed where nothing here does."""
        runtime = self._cuda.runtime
        cupy, driver = runtime.runtimeGetVersion() // 1000, runtime.driverGetVersion() // 1000
        return nvrtc(self._facts.capability, cupy, driver)

    def _of(self, program: Program) -> Loaded:
        self._cuda.use_for_launch(self._facts.number)
        digest = program.digest
        if digest not in self._loaded:
            architecture = architecture_for(self._facts.capability, self.compiler.architectures)
            cubin = compile_program(program, architecture, compiler=self.compiler)
            driver = self._cuda.driver
            while len(self._loaded) >= self._most:
                _, oldest = self._loaded.popitem(last=False)
                driver.moduleUnload(oldest.module)
            try:
                module = driver.moduleLoadData(cubin)
            except RuntimeError as error:
                if getattr(error, "status", None) == CUDA_OUT_OF_MEMORY:
                    raise OutOfMemory(f"GPU {self._facts.number} has no memory left for a kernel") from None
                raise
            self._loaded[digest] = Loaded(module, driver.moduleGetFunction(module, GLOBAL_NAME))
        self._loaded.move_to_end(digest)
        return self._loaded[digest]

    def unload(self) -> None:
        """Unload everything."""
        self._cuda.use_for_launch(self._facts.number)
        modules = [one.module for one in self._loaded.values()]
        self._loaded.clear()
        do_all([partial(self._cuda.driver.moduleUnload, module) for module in modules])
