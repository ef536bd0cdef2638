"""PTX of a kernel's entry, as NVRTC makes it, translated to C++ that the engine in kernels/host runs.

One statement of C++ an instruction (PTX ISA 8 and later), which ptx.h gives its types. What NVRTC has not
made of these kernels is not translated: an unknown instruction is an error. Special registers, the block's
barrier, shared memory and time are the engine's; ``nanosleep`` lets other lanes go on.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from ccbench.backends.kernels.building import Build, Nvrtc
from ccbench.backends.kernels.sources import KernelEntry, entries, kernel_folder, program

PRELUDE = Path(__file__).with_name("ptx.h")

PARAMETERS = "ccb_kernel_param_0"
SHARED_BYTES = 32768
"""Of a block, as kernels/host/shim.h has it."""

KINDS = {"u": "uint{}_t", "b": "uint{}_t", "s": "int{}_t"}
FLOATS = {"f32": "float", "f64": "double"}

PLACES = {
    "%tid.x": "threadIdx.x",
    "%ntid.x": "blockDim.x",
    "%ctaid.x": "blockIdx.x",
    "%nctaid.x": "gridDim.x",
    "%globaltimer": "ccb_host_timer()",
}

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
ARITHMETIC = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}

# The engine names what a lane waits for; compiled code does not say.
LET_OTHERS_GO_ON = "ccb_host_stall(0, -1, -1, -1, 0, 0);"


class UnknownPtx(Exception):
    """An instruction or operand that is not translated."""


def c_type(name: str) -> str:
    """C++'s type of PTX's ``u32``; registers and flags of one bit are ``pred``."""
    if name == "pred":
        return "bool"
    if name in FLOATS:
        return FLOATS[name]
    if not re.fullmatch(r"[ubs](8|16|32|64)", name):
        raise UnknownPtx(f"type {name}")
    return KINDS[name[0]].format(name[1:])


def register(name: str) -> str:
    """C++'s name of ``%rd12``."""
    return "r_" + name.lstrip("%").replace(".", "_")


def operands(text: str) -> list[str]:
    """``%rd1, [%rd2+8], {%r1, %r2}`` in parts."""
    return [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", text)]


class Translation:
    """One entry's body. shared: offset of each variable in the block's shared memory."""

    def __init__(self, ptx: str) -> None:
        self.shared: dict[str, int] = {}
        self._registers: set[str] = set()
        self._shared_bytes = 0
        body = ptx[ptx.index(".entry") :]
        self.lines = [
            line.partition("//")[0].strip() for line in body[body.index("{") :].splitlines()
        ]

    def cpp(self, name: str) -> str:
        """A function of C++ for the entry, registered with the engine under ``name``."""
        statements = [statement for line in self.lines for statement in self._statements(line)]
        if self._shared_bytes > SHARED_BYTES:
            raise UnknownPtx(f"{self._shared_bytes} bytes of shared memory")
        body = "\n".join(statements)
        return (
            f"static void run_{name}(const ccb::Arguments& arguments) {{\n"
            "const uint64_t parameters = (uint64_t)&arguments;\n"
            "const uint64_t shared = (uint64_t)ccb_host_here()->shared;\n"
            f"(void)parameters, (void)shared;\n{body}\n}}\n"
            f'static const int registered_{name} = ccb_host_register("{name}", run_{name});\n'
        )

    def _statements(self, line: str) -> list[str]:
        if not line or line.startswith((".pragma", ".maxntid", ".minnctapersm")):
            return []
        if line in ("{", "}"):
            return [line]
        if scope := re.fullmatch(r"\{ (.*) \}", line):
            parts = [f"{part.strip()};" for part in scope[1].split(";") if part.strip()]
            return [
                "{",
                *(statement for part in parts for statement in self._statements(part)),
                "}",
            ]
        if label := re.fullmatch(r"([$\w]+):", line):
            return [f"{label_of(label[1])}:;"]
        if declared := re.fullmatch(r"\.reg \.(\w+)\s+(%?\w+)(?:<(\d+)>)?;", line):
            numbers = range(int(declared[3])) if declared[3] else ("",)
            self._registers.add(declared[2].rstrip("0123456789"))
            names = ", ".join(f"{register(declared[2])}{number}" for number in numbers)
            return [f"{register_type(declared[1])} {names};"]
        if declared := re.fullmatch(r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\];", line):
            alignment, size = int(declared[1]), int(declared[3])
            self.shared[declared[2]] = -(-self._shared_bytes // alignment) * alignment
            self._shared_bytes = self.shared[declared[2]] + size
            return []
        return [self._instruction(part.strip()) for part in line.split(";") if part.strip()]

    def _instruction(self, text: str) -> str:
        guard = ""
        if guarded := re.match(r"@(!?)(%\w+)\s+", text):
            guard, text = f"if ({guarded[1]}{register(guarded[2])}) ", text[guarded.end() :]
        word, _, rest = text.partition(" ") if " " in text else text.partition("\t")
        head, *modifiers = word.strip().split(".")
        translate = TRANSLATIONS.get(head)
        if translate is None:
            raise UnknownPtx(text)
        return f"{guard}{{ {translate(self, modifiers, operands(rest))} }}"

    def value(self, operand: str, kind: str) -> str:
        """An operand that is read, as an expression of the type ``kind``."""
        to = c_type(kind)
        if operand in PLACES:
            return f"({to}){PLACES[operand]}"
        if operand.startswith("%") or operand in self._registers:
            if operand.rstrip("0123456789") not in self._registers:
                raise UnknownPtx(f"register {operand}")
            return register(operand) if kind == "pred" else f"in<{to}>({register(operand)})"
        if literal := re.fullmatch(r"0[fFdD]([0-9A-Fa-f]{8}|[0-9A-Fa-f]{16})", operand):
            bits = 4 * len(literal[1])
            return f"same_bits<{to}>((uint{bits}_t)0x{literal[1]}ull)"
        if re.fullmatch(r"-?\d+", operand):
            return f"({to}){int(operand) % 2**64:#x}ull"
        return f"({to})({self.symbol(operand)})"

    def symbol(self, name: str) -> str:
        """The address of a variable: in shared memory, the offset there."""
        if name == PARAMETERS:
            return "parameters"
        if name not in self.shared:
            raise UnknownPtx(f"symbol {name}")
        return f"{self.shared[name]}"

    def address(self, operand: str, modifiers: Sequence[str]) -> str:
        """The address of ``[%rd1+8]``."""
        inside = re.fullmatch(r"\[([%$\w]+)\s*(?:\+\s*(-?\d+))?\]", operand)
        if inside is None:
            raise UnknownPtx(f"address {operand}")
        base = (
            self.value(inside[1], "u64")
            if inside[1].startswith("%")
            else self.symbol(inside[1])
        )
        window = "shared + " if "shared" in modifiers else ""
        return f"(uint64_t)({window}{base} + ({inside[2] or 0}))"


def label_of(name: str) -> str:
    """C++'s name of a label."""
    return name.replace("$", "at_")


def register_type(name: str) -> str:
    """C++'s type of registers: unsigned words, whatever is computed with them."""
    return "bool" if name == "pred" else f"uint{name[1:]}_t"


# -- instructions -----------------------------------------------------------------------------------------

Instruction = Callable[[Translation, Sequence[str], Sequence[str]], str]


def written(target: str, value: str) -> str:
    return f"out({register(target)}, {value});"


def plain(template: str, *kinds: str) -> Instruction:
    """An instruction by ``template``, in which {0}, {1} are what is read, and {type} its type.

    That is its last modifier; kinds: of single operands, where they have another.
    """

    def translate(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
        kind = modifiers[-1]
        values = [
            code.value(part, own or kind)
            for part, own in zip_longest(parts[1:], kinds, fillvalue="")
        ]
        value = template.format(*values, type=c_type(kind))
        return (
            f"{register(parts[0])} = {value};" if kind == "pred" else written(parts[0], value)
        )

    return translate


def arithmetic(sign: str) -> Instruction:
    """+ and the like, in unsigned numbers, which wrap around."""

    def translate(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
        kind = modifiers[-1]
        wrapping = kind if kind in FLOATS or kind == "pred" else f"u{kind[1:]}"
        return plain(f"({{type}})({{0}} {sign} {{1}})")(code, [wrapping], parts)

    return translate


def multiplied(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
    """mul and mad: of the lower or upper half, or of twice the width."""
    kind, added = modifiers[-1], len(parts) > 3
    if kind in FLOATS:
        return plain("{0} * {1}")(code, [kind], parts)
    bits = int(kind[1:])
    half = modifiers[0]
    if half == "lo":
        kind = wide = f"u{bits}"
    elif half == "wide":
        wide = f"{kind[0]}{2 * bits}"
    elif half == "hi" and kind == "u64":
        left, right = (code.value(part, kind) for part in parts[1:3])
        return written(parts[0], f"(uint64_t)((unsigned __int128){left} * {right} >> 64)")
    else:
        raise UnknownPtx(f"mul.{'.'.join(modifiers)}")
    to = c_type(wide)
    left, right = (f"({to}){code.value(part, kind)}" for part in parts[1:3])
    sum_ = f" + {code.value(parts[3], wide)}" if added else ""
    # Shorts multiply as ints, whose overflow is no error here.
    return written(
        parts[0], f"({to})({'(uint32_t)' if bits == 16 else ''}{left} * {right}{sum_})"
    )


def converted(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
    """cvt: the last two modifiers are the type that is written and the one that is read."""
    *rounding, to, kind = modifiers
    if rounding not in ([], ["rn"]):
        raise UnknownPtx(f"cvt.{'.'.join(modifiers)}")
    if (to, kind) == ("f32", "f16"):
        return written(parts[0], f"float_of_half({code.value(parts[1], 'u16')})")
    if (to, kind) == ("f16", "f32"):
        return written(parts[0], f"half_of_float({code.value(parts[1], kind)})")
    return written(parts[0], f"({c_type(to)}){code.value(parts[1], kind)}")


def moved(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
    """mov, of two halves into a register or out of one, too."""
    target, source = parts
    kind = modifiers[-1]
    if source.startswith("{"):
        low, high = operands(source.strip("{}"))
        bits = int(kind[1:]) // 2
        lower, upper = (
            f"({c_type(kind)}){code.value(part, f'u{bits}')}" for part in (low, high)
        )
        return written(target, f"({c_type(kind)})({lower} | {upper} << {bits})")
    if target.startswith("{"):
        bits = int(kind[1:]) // 2
        halves = zip(operands(target.strip("{}")), (0, bits), strict=True)
        value = code.value(source, f"u{kind[1:]}")
        parts_written = [
            written(half, f"(uint{bits}_t)(whole >> {shift})")
            for half, shift in halves
            if half != "_"
        ]
        return f"const auto whole = {value}; {' '.join(parts_written)}"
    value = code.value(source, kind)
    return f"{register(target)} = {value};" if kind == "pred" else written(target, value)


def compared(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
    """setp; an unordered comparison of floats is ``nan`` alone."""
    comparison, kind = modifiers
    left, right = (code.value(part, kind) for part in parts[1:])
    if comparison == "nan":
        return f"{register(parts[0])} = std::isnan({left}) || std::isnan({right});"
    return f"{register(parts[0])} = {left} {COMPARISONS[comparison]} {right};"


ORDERED = {"relaxed", "acquire"}


def loaded(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
    """ld; a vector's elements one after another."""
    kind, address = modifiers[-1], code.address(parts[1], modifiers)
    function = "load_flag" if ORDERED & {*modifiers} else "load"
    targets = operands(parts[0].strip("{}"))
    size = int(kind[1:]) // 8
    reads = [
        f"{function}<{c_type(kind)}>(at + {size * number})" for number in range(len(targets))
    ]
    # All are read before a register that the address may be made of is written.
    kept = " ".join(f"const auto value_{number} = {read};" for number, read in enumerate(reads))
    writes = " ".join(
        written(target, f"value_{number}") for number, target in enumerate(targets)
    )
    return f"const uint64_t at = {address}; {kept} {writes}"


def stored(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
    """st, likewise."""
    kind, address = modifiers[-1], code.address(parts[0], modifiers)
    function = "store_flag" if ORDERED & {*modifiers} else "store"
    size = int(kind[1:]) // 8
    writes = [
        f"{function}<{c_type(kind)}>(at + {size * number}, {code.value(source, kind)});"
        for number, source in enumerate(operands(parts[1].strip("{}")))
    ]
    return f"const uint64_t at = {address}; {' '.join(writes)}"


def barrier(code: Translation, modifiers: Sequence[str], parts: Sequence[str]) -> str:
    """bar.sync and bar.red.or.pred of the whole block."""
    if modifiers == ["sync"]:
        return "(void)ccb_host_barrier(0);"
    if modifiers == ["red", "or", "pred"]:
        return f"{register(parts[0])} = ccb_host_barrier({code.value(parts[2], 'pred')}) != 0;"
    raise UnknownPtx(f"bar.{'.'.join(modifiers)}")


TRANSLATIONS: Mapping[str, Instruction] = {
    **{name: arithmetic(sign) for name, sign in ARITHMETIC.items()},
    "min": plain("({0} < {1} ? {0} : {1})"),
    "max": plain("({0} > {1} ? {0} : {1})"),
    "div": plain("quotient<{type}>({0}, {1})"),
    "rem": plain("rest<{type}>({0}, {1})"),
    "neg": plain("({type})-{0}"),
    "fma": plain("std::fma({0}, {1}, {2})"),
    "not": lambda code, modifiers, parts: plain(
        "!{0}" if modifiers == ["pred"] else "({type})~{0}"
    )(code, modifiers, parts),
    "mul": multiplied,
    "mad": multiplied,
    "cvt": converted,
    "mov": moved,
    "cvta": lambda code, modifiers, parts: moved(code, ["u64"], parts),
    "setp": compared,
    "selp": plain("{2} ? {0} : {1}", "", "", "pred"),
    "shl": plain("left_shift({0}, {1})", "", "u32"),
    "shr": plain("right_shift({0}, {1})", "", "u32"),
    "bfe": plain("field({0}, {1}, {2})", "", "u32", "u32"),
    "bfi": plain("with_field({0}, {1}, {2}, {3})", "", "", "u32", "u32"),
    "ld": loaded,
    "st": stored,
    "bar": barrier,
    "bra": lambda code, modifiers, parts: f"goto {label_of(parts[0])};",
    "ret": lambda code, modifiers, parts: "return;",
    "fence": lambda code, modifiers, parts: "__atomic_thread_fence(__ATOMIC_SEQ_CST);",
    "nanosleep": lambda code, modifiers, parts: LET_OTHERS_GO_ON,
}


# -- builds -----------------------------------------------------------------------------------------------


def ptx_of(
    entry: KernelEntry, dtype: str, op: str, architecture: int, compiler: Nvrtc, folder: Path
) -> str:
    """What NVRTC makes of the kernels in ``folder``."""
    source = program(entry, dtype, op, folder)
    words = (*source.options, f"-arch=compute_{architecture}")
    return compiler._compiled(source, words, "PTX").decode().rstrip("\0")


def translated(
    file: str,
    dtype: str,
    op: str,
    architecture: int,
    compiler: Nvrtc,
    target: Path,
    sources: Path | None = None,
) -> Build:
    """A build of the entries of ``file`` from their PTX, in ``target``, a folder that is made.

    sources: the kernels' folder; None: the shipped one. The build computes with this type and op alone.
    """
    sources = sources or kernel_folder()
    shutil.copytree(sources, target)
    texts = [
        Translation(ptx_of(entry, dtype, op, architecture, compiler, sources)).cpp(entry.name)
        for entry in entries().values()
        if entry.file == file
    ]
    (target / file).write_text(
        PRELUDE.read_text(encoding="utf-8") + "".join(texts), encoding="utf-8"
    )
    return Build(file, target)
