"""Listings in the kernel's form, written by hand and small enough to read."""

from __future__ import annotations

import json
from typing import Any

RECORDS: dict[str, Any] = {
    "x86/tiny/core.json": [
        {
            "EventName": "CACHE.ALL",
            "EventCode": "0x24",
            "UMask": "0x3",
            "Counter": "0,1",
            "BriefDescription": "All  accesses.",
        },
        {"EventName": "CACHE.HIT", "EventCode": "0x24", "UMask": "0x1", "Counter": "0,1", "SampleAfterValue": "1000"},
        {"EventName": "CACHE.MISS", "EventCode": "0x24", "UMask": "0x2", "Counter": "0", "Errata": "X1"},
        {"EventName": "TICKS", "Counter": "Fixed counter 1", "UMask": "0x2", "BriefDescript6ion": "Cycles."},
        {"EventName": "INST_RETIRED.ANY", "Counter": "Fixed counter 0", "UMask": "0x1"},
        {
            "EventName": "OFFCORE.READS",
            "EventCode": "0xB7, 0xBB",
            "MSRIndex": "0x1a6, 0x1a7",
            "MSRValue": "0x10001",
            "Counter": "0,1",
            "Deprecated": "1",
        },
    ],
    "x86/tiny/uncore.json": [
        {
            "EventName": "BUS.READS",
            "EventCode": "0x04",
            "UMask": "0x100cf",
            "Unit": "BUS",
            "ScaleUnit": "64Bytes",
            "PerPkg": "1",
            "PortMask": "0x3",
            "Filter": "edge=1,inv",
            "Counter": "FIXED",
        }
    ],
    "x86/tiny/tiny-metrics.json": [
        {
            "MetricName": "miss_ratio",
            "MetricExpr": "cache.miss / CACHE.ALL",
            "ScaleUnit": "100%",
            "MetricGroup": "Cache;;Memory ",
            "MetricThreshold": "miss_ratio > 0.1 & ticks > 5",
            "MetricConstraint": "NO_GROUP_EVENTS",
        },
        {"MetricName": "hit_ratio", "MetricExpr": "1 - miss_ratio", "ScaleUnit": "100%"},
        {
            "MetricName": "per_package",
            "MetricExpr": "cpu@CACHE.MISS\\,cmask\\=1\\,edge@ / #num_packages if #SMT_on else BUS.READS:k",
        },
        {"MetricName": "bytes", "MetricExpr": "64 * BUS.READS / source_count(BUS.READS) / duration_time"},
    ],
    "x86/tiny/counter.json": [
        {"Unit": "core", "CountersNumFixed": 2, "CountersNumGeneric": "2"},
        {"Unit": "bus", "CountersNumFixed": "1", "CountersNumGeneric": "4"},
    ],
    "x86/tiny/metricgroups.json": {"Cache": "Caches."},
    "x86/mix/core.json": [
        {"EventName": "OPS", "EventCode": "1", "Unit": "cpu_core"},
        {"EventName": "OPS", "EventCode": "2", "Unit": "cpu_atom"},
        {"MetricName": "work", "MetricExpr": "OPS * 2", "Unit": "cpu_atom"},
        {"MetricName": "work", "MetricExpr": "OPS * 3", "Unit": "cpu_core"},
        {"MetricName": "double", "MetricExpr": "work * 2", "Unit": "cpu_core"},
    ],
    "arm64/standard.json": [
        {"EventName": "CPU_CYCLES", "EventCode": "0x11", "BriefDescription": "Cycles."},
        {"EventName": "STALL", "EventCode": "0x3C", "BriefDescription": "Stalls."},
        {"MetricName": "stalled", "MetricExpr": "stall / cpu_cycles", "ScaleUnit": "100%"},
    ],
    "arm64/maker/small-1/core.json": [
        {"ArchStdEvent": "cpu_cycles"},
        {"ArchStdEvent": "STALL", "BriefDescription": "Stalls here."},
        {"ArchStdEvent": "stalled", "MetricExpr": "100 * stall / (cpu_cycles * #slots)"},
    ],
    "powerpc/big/core.json": [
        {"EventName": "PM_ANY", "EventCode": "0xF0"},
        {"EventName": "PM_THIRD", "EventCode": "0x300F4"},
        {"EventName": "PM_RUN_CYC", "EventCode": "0x600F4"},
        {
            "MetricName": "nest",
            "MetricExpr": "hv@PM_CYC\\,chip\\=?@ / 2",
            "AggregationMode": "PerChip",
        },
    ],
}
MAPFILES = {
    "x86": "Family-model,Version,Filename,EventType\n"
    "GenuineIntel-6-(55|5A)-[01234],v1,tiny,core\n"
    "GenuineIntel-6-[[:xdigit:]]+,v1,mix,core\n",
    "arm64": "# MIDR,Version,Folder,Type\n\n0x00000000410fd0c0,v1,maker/small-1,core\n",
    "powerpc": "0x004e[[:xdigit:]]{4},1,big,core\n",
}

# What `perf list --json` prints.
PERF_LIST: list[dict[str, Any]] = [
    {"Unit": "cpu", "EventName": "cpu-cycles", "EventAlias": "cycles", "EventType": "Hardware event"},
    {
        "Unit": "cpu",
        "Topic": "cache",
        "EventName": "l2.miss",
        "EventType": "Kernel PMU event",
        "BriefDescription": "Misses",
        "Encoding": "cpu/event=0x24,period=0x30d43,umask=0x3f,edge,ldlat=3/",
    },
    {"Unit": "uncore_imc", "EventName": "cas", "ScaleUnit": "64Bytes", "Encoding": "uncore_imc/event=4/"},
    {"EventName": "sched:sched_switch", "EventType": "Tracepoint event"},
    {"MetricGroup": "A", "MetricName": "ratio", "MetricExpr": "l2.miss / cycles", "ScaleUnit": "100%"},
    {"MetricGroup": "B", "MetricName": "ratio", "MetricExpr": "l2.miss / cycles", "ScaleUnit": "100%"},
]


def files(**changed: bytes) -> dict[str, bytes]:
    """The listings as files by path from the folder of architectures."""
    found = {path: json.dumps(records).encode() for path, records in RECORDS.items()}
    found |= {f"{architecture}/mapfile.csv": text.encode() for architecture, text in MAPFILES.items()}
    return found | {f"x86/tiny/{name}.json": content for name, content in changed.items()}
