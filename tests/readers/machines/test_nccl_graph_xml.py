import pytest

from ccbench.readers.machines.nccl_graph_xml import read
from ccbench.topology.graph import DeviceKind, TopologyClass

Channel = list[tuple[str, int | str]]


def graph(attributes: str, *channels: Channel) -> str:
    listed = "".join(
        "<channel>" + "".join(f'<{tag} dev="{dev}"/>' for tag, dev in channel) + "</channel>"
        for channel in channels
    )
    return f'<graphs version="1"><graph id="0" {attributes}>{listed}</graph></graphs>'


def ring(*gpus: int | str) -> Channel:
    return [("gpu", gpu) for gpu in gpus]


def test_rings_chains_and_nets_are_facts() -> None:
    channel = [("net", 3), *ring(1, 0), ("net", 2)]
    topology = read(graph('pattern="4" nchannels="1" typeintra="PHB"', channel))
    assert topology.facts["rings"] == [[1, 0]]
    assert topology.facts["ring_nets"] == {"in": 3, "out": 2}
    assert topology.facts["chains"] == {}
    assert [(d.name, d.kind, d.attributes["dev"]) for d in topology.devices] == [
        ("gpu0", DeviceKind.GPU, 0),
        ("gpu1", DeviceKind.GPU, 1),
        ("nic0", DeviceKind.NIC, 2),
        ("nic1", DeviceKind.NIC, 3),
    ]
    tree = read(graph('pattern="3" nchannels="1" typeintra="PHB"', ring(1, 0)))
    assert tree.facts["chains"] == {"0": [[1, 0]]}
    assert tree.facts["rings"] == []


def test_hexadecimal_ids_carry_the_host_in_their_highest_bits() -> None:
    far = 1 << 56
    topology = read(
        graph('pattern="4" nchannels="1"', ring("0", "0x1", hex(far), hex(far + 1)))
    )
    assert [(gpu.name, gpu.node, gpu.attributes["dev"]) for gpu in topology.gpus] == [
        ("n0.gpu0", 0, 0),
        ("n0.gpu1", 0, 1),
        ("n1.gpu0", 1, 0),
        ("n1.gpu1", 1, 1),
    ]


RINGS = [ring(0, 1, 2, 3), ring(0, 1, 3, 2), ring(0, 2, 1, 3)]


@pytest.mark.parametrize(
    ("attributes", "channels", "expected", "nvswitch"),
    [
        ('pattern="5" nchannels="1"', [ring(0)], TopologyClass.NVSWITCH, True),
        (
            'pattern="4" nchannels="3" typeintra="NVL" samechannels="0"',
            RINGS,
            TopologyClass.NVLINK_MESH,
            False,
        ),
        # The same orders, but the search was for one order: a switch gives that too.
        (
            'pattern="4" nchannels="3" typeintra="NVL" samechannels="1"',
            RINGS,
            TopologyClass.UNKNOWN,
            None,
        ),
        # Not all pairs follow each other: a mesh and a cube mesh look alike.
        (
            'pattern="4" nchannels="2" typeintra="NVL" samechannels="0"',
            [ring(0, 1, 2, 3, 4), ring(0, 2, 1, 3, 4)],
            TopologyClass.UNKNOWN,
            None,
        ),
        (
            'pattern="4" nchannels="1" typeintra="NVL" samechannels="0"',
            [ring(0, 1)],
            TopologyClass.UNKNOWN,
            None,
        ),
        (
            'pattern="4" nchannels="1" typeintra="SYS"',
            [ring(0, 1)],
            TopologyClass.UNKNOWN,
            False,
        ),
        (
            'pattern="4" nchannels="1" typeintra="LOC"',
            [ring(0)],
            TopologyClass.SINGLE_GPU,
            None,
        ),
        ('pattern="4" nchannels="0" typeintra="SYS"', [], TopologyClass.UNKNOWN, None),
    ],
)
def test_the_class_is_told_only_where_it_follows(
    attributes: str, channels: list[Channel], expected: TopologyClass, nvswitch: bool | None
) -> None:
    topology = read(graph(attributes, *channels))
    assert topology.topology_class is expected
    assert topology.facts["nvswitch"] is nvswitch


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (
            '<graphs>\n<graph id="0" pattern="99" nchannels="0"/></graphs>',
            "unknown_spelling",
            2,
        ),
        (graph('pattern="4" nchannels="6"', []), "contradiction", 1),
        (graph('pattern="4" nchannels="1"', [("gpu", "x")]), "damaged_line", 1),
        (graph('pattern="4" nchannels="1"', [("tpu", 1)]), "unsupported", 1),
        (graph('pattern="4" nchannels="1"', ring(0, 0)), "contradiction", 1),
        (graph('pattern="4" nchannels="1"', ring(0, 1))[:-12], "truncated", 1),
    ],
)
def test_what_looks_wrong_is_noticed_with_its_line(
    text: str, kind: str | None, line: int
) -> None:
    assert (kind, line) in [(warning.kind, warning.line) for warning in read(text).warnings]
