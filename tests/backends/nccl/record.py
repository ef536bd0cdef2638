"""What released NCCL wheels and an installed CuPy declare, as small text files beside the tests.

Run by hand when there are new releases, with wheels that ``pip download --no-deps nvidia-nccl-cu12==2.28.9``
fetched, and with any CuPy installed and an NCCL and a cuBLAS it can load; no driver is needed:

    python -m tests.backends.nccl.record nvidia_nccl_cu12-2.28.9-*.whl
    python -m tests.backends.nccl.record cupy
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ccbench.backends.base import CannotRun
from ccbench.backends.nccl.overlap import open_blas

RECORDED = Path(__file__).parent / "recorded"

ENUMERATIONS = {"results": "ncclResult_t", "dtypes": "ncclDataType_t", "ops": "ncclRedOp_t"}
CONSTANTS = (
    "NCCL_UNIQUE_ID_BYTES",
    "NCCL_CONFIG_UNDEF_INT",
    "NCCL_SPLIT_NOCOLOR",
    "NCCL_WIN_COLL_SYMMETRIC",
    "NCCL_UNDEF_FLOAT",
)


def kind_of(declared: str) -> str:
    """How an argument or field is passed: pointer, size_t, uint, float, ncclUniqueId or int (enums too)."""
    if "*" in declared or re.search(
        r"\b(ncclComm_t|cudaStream_t|cudaEvent_t|ncclWindow_t)\b", declared
    ):
        return "pointer"
    for name in ("size_t", "ncclUniqueId", "float"):
        if re.search(rf"\b{name}\b", declared.replace("uint64_t", "size_t")):
            return name
    return "uint" if "unsigned" in declared else "int"


def functions_of(header: str) -> dict[str, list[str]]:
    """Kinds of the arguments of every function."""
    kinds = {}
    for name, arguments in re.findall(
        r"^(?:ncclResult_t|const char\*)\s+(nccl\w+)\(([^)]*)\);", header, re.M
    ):
        listed = [
            argument.strip()
            for argument in arguments.split(",")
            if argument.strip() not in ("", "void")
        ]
        kinds[name] = [kind_of(argument) for argument in listed]
    return kinds


def fields_of(header: str, structure: str) -> list[tuple[str, str]]:
    """(name, kind) of every field of a structure, in order."""
    body = re.search(rf"typedef struct {structure}_v\d+ \{{(.*?)\}}", header, re.S)
    if body is None:
        return []
    plain = re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.S)
    declared = [line.strip() for line in plain.split(";") if line.strip()]
    return [(re.findall(r"\w+", line)[-1], kind_of(line)) for line in declared]


def enumeration_of(header: str, name: str) -> dict[str, int]:
    """Names and numbers of an enumeration."""
    (body,) = re.findall(rf"typedef enum \{{([^}}]*)\}} {name};", header)
    return {key: int(value) for key, value in re.findall(r"(nccl\w+)\s*=\s*(\d+)\b", body)}


def constants_of(header: str) -> dict[str, str]:
    """Texts of the constants, and the magic numbers of the two initializers."""
    texts = {
        name: match.group(1)
        for name in CONSTANTS
        if (match := re.search(rf"#define {name} +(\S+)", header)) is not None
    }
    for name, mark in (
        ("NCCL_CONFIG_INITIALIZER", "config"),
        ("NCCL_SIM_INFO_INITIALIZER", "simulation"),
    ):
        if match := re.search(rf"{name} \{{.*?,.*?\*/[ \\\n]*(\w+)", header, re.S):
            named = re.search(rf"#define {match.group(1)} +(\S+)", header)
            texts[f"{mark} magic"] = named.group(1) if named else match.group(1)
    return texts


def exported(library: bytes) -> list[str]:
    """Names of the functions that a library exports and that begin with nccl."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(library)
        file.flush()
        words = ["nm", "--dynamic", "--defined-only", file.name]
        listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r" T (nccl\w+)", listed)))


def record_wheel(wheel: Path) -> Path:
    """Read header and library of an NCCL wheel; returns the file written."""
    with zipfile.ZipFile(wheel) as held:
        (header_name,) = [name for name in held.namelist() if name.endswith("include/nccl.h")]
        (library_name,) = [
            name for name in held.namelist() if re.search(r"lib/libnccl\.so[.\d]*$", name)
        ]
        header = held.read(header_name).decode()
        symbols = exported(held.read(library_name))
    (version,) = re.findall(r"#define NCCL_VERSION_CODE (\d+)", header)
    (config_version,) = re.findall(r"typedef struct ncclConfig_v(\d+)", header)
    facts: dict[str, Any] = {
        "version": int(version),
        "functions": functions_of(header),
        "exported": symbols,
        "config": {"version": int(config_version), "fields": fields_of(header, "ncclConfig")},
        "collective": fields_of(header, "ncclCollConfig"),
        "simulation": fields_of(header, "ncclSimInfo"),
        "constants": constants_of(header),
        **{key: enumeration_of(header, name) for key, name in ENUMERATIONS.items()},
    }
    return write(f"nccl-{wheel.name.split('-')[1]}", facts)


def cupy_facts() -> dict[str, Any]:
    """What the installed CuPy's NCCL module has: names, and methods with their arguments' names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import cupy  # type: ignore[import-not-found,unused-ignore]
        from cupy.cuda import nccl, runtime  # type: ignore[import-not-found,unused-ignore]

        available = bool(nccl.available)
    methods = {}
    for name in dir(nccl.NcclCommunicator) if available else ():
        text = (getattr(nccl.NcclCommunicator, name).__doc__ or "").strip()
        if not name.startswith("_") and (
            match := re.match(rf"NcclCommunicator\.{name}\((.*?)\)", text)
        ):
            parameters = [
                parameter.split("=")[0].split()[-1] for parameter in match.group(1).split(",")
            ]
            methods[name] = [parameter for parameter in parameters if parameter != "self"]
    products: dict[str, list[str]] = {}
    cublas = None
    with suppress(CannotRun):
        cublas, _ = open_blas()
    for name in ("create", "destroy", "gemmEx") if cublas else ():
        (given_text,) = re.findall(rf"{name}\((.*?)\)", getattr(cublas, name).__doc__)
        products[name] = [
            parameter.split()[-1] for parameter in given_text.split(",") if parameter
        ]
    return {
        "cupy": str(cupy.__version__),
        "module": sorted(name for name in dir(nccl) if not name.startswith("_")),
        "methods": methods,
        "build_version": int(nccl.get_build_version()) if available else 0,
        "unique_id": type(nccl.get_unique_id()).__name__ if available else "",
        "runtime": sorted(
            name
            for name in dir(runtime)
            if name[0].islower() and callable(getattr(runtime, name))
        ),
        "cublas": products,
    }


def write(name: str, facts: dict[str, Any]) -> Path:
    """One line for each fact, so that differences between releases can be read."""
    RECORDED.mkdir(exist_ok=True)
    path = RECORDED / f"{name}.json"
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return path


def main(arguments: list[str]) -> None:
    """Record each argument: a wheel, or the word ``cupy``."""
    for argument in arguments:
        if argument == "cupy":
            facts = cupy_facts()
            print(write(f"cupy-{facts['cupy']}", facts))
        else:
            print(record_wheel(Path(argument)))


if __name__ == "__main__":
    main(sys.argv[1:])
