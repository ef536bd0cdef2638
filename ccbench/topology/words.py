"""Words of people about machines: what they say is there, and what they say is not."""

from __future__ import annotations

import re

# One word that names a part of a machine. The look-ahead settles a word once, so that no text takes long.
_NAMED = (
    r"(?=[\w./-]*?"
    r"(?:nv-?link|nv-?switch|nvl-?\d|nvls|sharp|bridge|mesh|cube|xgmi|infinity|fabric|hccs|p2p|peer|gpudirect|rdma|infiniband|ethernet|slingshot|omni-?path|switch|link|network|connector|adapter)"
    r"|\b(?:ib|ipoib|roce(?:v\d)?|efa|opa|tcp(?:xo?)?|gdr|nics?|nv\d{1,2}|mnnvl|sxm\d?|hgx|dgx)(?![a-z]))"
)
_PART = rf"(?<![\w./])(?<!(?<!\bnon)-){_NAMED}[\w./-]+"
_PARTS = rf"{_PART}(?:\s+{_PART}){{0,3}}"
_MORE = rf"\s+(?:and|n?or)\s+(?:(?:no|an?|any)\s+)?{_PARTS}"
_PAIR = rf"{_PARTS}(?:{_MORE})?"
_LIST = rf"{_PARTS}(?:(?:\s*,\s*{_PARTS}){{0,3}}\s*,?{_MORE}){{0,3}}"
_PCIE = r"pcie[\w.-]*(?:\s(?:gen\s?)?[1-6]\b)?"
_BETWEEN = r"(?:(?!(?:pcie|but|with|only|over|via|through|and|or)\b)[\w'-]{1,20}\s+){0,3}?"
_IS = r"(?:(?:is|are|was|were|has been|have been)\s+)?(?:currently\s+|all\s+)?"
_OUT_OF_USE = (
    r"(?:disabled|missing|absent|broken|unused|inactive|dead|removed|down|failed|unplugged|unpopulated|unavailable"
    r"|unsupported)\b"
)
_IN_USE = (
    r"(?:installed|present|available|used|in use|enabled|active|activated|connected|populated|plugged|fitted"
    r"|mounted|supported|working|possible|detected|found|there|up|on|reachable|usable|visible|allowed)\b"
)
_NO = (
    r"(?:\bthere (?:is|are|was|were) )?"
    r"(?:\b(?:no|not|without|lacks?|lacking|minus|neither|nor|never|non|none(?=\s+of\b)"
    r"|(?:does|do|has|have|is|are)n't)|w/o|(?<![\w.-])(?:zero|0(?:\s?%\s+of)?(?=\s+(?:x\s|(?:[\w-]+\s+){0,4}links\b|[\w-]+s\b))))"
    # A hyphen before what is no part makes an adjective (a non-blocking fabric); "no more than 4" are some.
    rf"(?:\s+(?!only\b|(?:more|less|fewer)\s+than\b)|-(?:{_NAMED}|(?=pcie|gpu)))"
)
_DENIAL = re.compile(
    # Of a quality, which denies no part: "never oversubscribed InfiniBand".
    r"\b(?:not|never|non)[\s-]+(?:over-?subscribed|congested|contended|shared|throttled|degraded|tapered|limited)\b"
    rf"|(?<![\w./]){_NAMED}[\w./-]*-less\b|"
    # After the part: "bridge not installed", "NVLink disabled", "NVLink: none".
    rf"{_PAIR}\s?(?:(?:[,:(-]\s*)?{_IS}(?:not|never|isn't|aren't|wasn't|weren't)\s+(?:yet\s+|been\s+)?{_IN_USE}"
    rf"|(?::\s*)?{_IS}(?:{_OUT_OF_USE}|off\b)|\(\s*{_IS}(?:{_OUT_OF_USE}|off\b)\s*\)"
    # A variable (NCCL_NVLS_ENABLE=0) may be of one of several runs: whoever reads variables knows of which.
    rf"|(?::|(?<!_ENABLE)=)\s?(?:no|none|off|false|0)(?![\w.]))(?:\s+{_LIST})?"
    # Before it: "no working NVLink bridge", "no PCIe switch", "not a DGX", "missing bridge".
    rf"|{_NO}(?:{_BETWEEN}(?:{_PCIE}\s+)?{_LIST}|{_PCIE}|(?:an?\s+|the\s+|any\s+)?[\w./+-]+)"
    rf"|\b{_OUT_OF_USE}\s+{_LIST}",
    re.IGNORECASE,
)

_SHARES = {"half": 0.5, "third": 1 / 3, "quarter": 0.25, "fourth": 0.25, "eighth": 0.125}
# An ordinal ("the third NVLink") is no share, so that all but a half need their "of".
_SHARE = (
    r"\b(?:(?P<percent>[1-9][0-9]?)\s?(?:%|percent)\s+of|half(?:\s+of)?"
    r"|(?:(?P<times>two|three)[\s-])?(?P<part>third|quarter|fourth|eighth)s?\s+of)\s+(?:(?:the|its|their|all)\s+)*"
)


def said_and_denied(words: str) -> tuple[str, str]:
    """Return (what ``words`` say is there, what they say is not), of a machine or a network.

    ``pcie4, no NVLink bridge`` says ``pcie4`` and denies ``no NVLink bridge``. Parts that stand together are
    denied together (``without NVLink or NVSwitch``), and where a word may belong to either side it is denied:
    a machine is better taken to be slower than it is. Words that deny nothing are returned as they are.
    """
    denied = _DENIAL.findall(words)
    if not denied:
        return words, ""
    kept = re.sub(r"\(\W*\)", "", _DENIAL.sub(",", words)).split(",")
    return ", ".join(filter(None, map(str.strip, kept))), "; ".join(denied)


def share_said(words: str, part: str) -> tuple[float, str]:
    """Return (least share of a machine's parts that ``words`` say is in use or fast, the other words).

    ``pcie4, half of the NVLinks`` and ``pcie4, NVLink at half rate`` say 0.5 of NVLinks, and ``pcie4``: a
    share of a part does not say that it is there. part: a pattern of its name.
    """
    rated = rf"(?:{part})\s+(?:[a-z]+\s+)?at\s+(?:an?\s+)?{_SHARE}(?:full\s+)?(?:rate|speed|width|bandwidth)"
    shares = [1.0]
    for pattern in (rf"{_SHARE}(?:them\b|{part})(?P<gone>\s+{_IS}{_OUT_OF_USE})?", rated):
        for match in re.finditer(pattern, words, re.IGNORECASE):
            share = _SHARES[(match["part"] or "half").lower()]
            share *= {"two": 2, "three": 3}.get((match["times"] or "").lower(), 1)
            share = int(match["percent"]) / 100 if match["percent"] else share
            shares.append(1 - share if match.groupdict().get("gone") else share)
        words = re.sub(pattern, "", words, flags=re.IGNORECASE)
    return min(shares), words
