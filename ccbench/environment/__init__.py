"""What a run was made under: the machine, its limits, its settings, the libraries, the variables.

Everything is read below one root folder, so that a test can lay out another machine's ``/proc`` and
``/sys``. Nothing is executed, and no library is imported but pynvml, through which GPUs tell their modes. A
fact the machine does not tell is None. Values are kept of variables of an allow-list only, in command lines
too, and what looks like a secret is blanked.
"""

from ccbench.environment.accelerators import (
    Accelerators,
    GpuSettings,
    before_turing,
    cuda_install,
    read_accelerators,
)
from ccbench.environment.commands import command_shown, line_shown, without_values
from ccbench.environment.files import Files
from ccbench.environment.limits import Limits, control_group_limits
from ccbench.environment.memory import available_memory_bytes
from ccbench.environment.observing import Environment, capture, observe
from ccbench.environment.processors import (
    Cache,
    allowed_cpus,
    counted,
    expanded,
    spread_over_cores,
    usable_cores,
)
from ccbench.environment.software import (
    git_revision,
    install_line,
    installed_version,
)
from ccbench.environment.variables import (
    LONGEST_VALUE,
    REDACTED,
    kept_variables,
)

__all__ = [
    "LONGEST_VALUE",
    "REDACTED",
    "Accelerators",
    "Cache",
    "Environment",
    "Files",
    "GpuSettings",
    "Limits",
    "allowed_cpus",
    "available_memory_bytes",
    "before_turing",
    "capture",
    "command_shown",
    "control_group_limits",
    "counted",
    "cuda_install",
    "expanded",
    "git_revision",
    "install_line",
    "installed_version",
    "kept_variables",
    "line_shown",
    "observe",
    "read_accelerators",
    "spread_over_cores",
    "usable_cores",
    "without_values",
]
