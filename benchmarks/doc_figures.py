#!/usr/bin/env python3
"""Keep the figures of the documents equal to the committed results.

Every table below follows its name in a page, as in ``<!-- figures: speed -->``; a sentence stands in its page as it is
formed here. Without an option, this compares and reports what differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from math import prod
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import inversion
import lesions
import tiny_networks
from quality import ROOT
from quality.command import RESULTS
from quality.offsets import POINTS, at_offsets, best_offsets
from quality.runs import key_of, read_plan, run_of
from quality.scores import METRICS
from quality.tables import (
    BALANCED,
    BASELINE,
    CONTROL,
    WEIGHTED,
    Summary,
    by_class,
    by_loss,
    classes_table,
    differences_table,
    images_table,
    interval,
    is_clear,
    named,
    number,
    ranged,
    rows_of,
    scores_table,
    summarize,
    without_most,
    without_table,
)
from result_table import Row, markdown_table, read_rows
from timing.losses import CASES, NAMES, OTHERS
from timing.peers import LIBRARIES

RIVALS = ("weighted", "dice", "rmi", "cldice")  # the losses among which is the best rival of a set
NOW, OURS = "EdgeAwareLoss()", "EdgeAwareLoss() (version 0.3)"
NO_REGIONS = "EdgeAwareLoss() (region_weight 0, version 0.3)"
LARGER = WEIGHTED.replace("weight 2", "weight 4")  # tried after the trainings of WEIGHTED
ENOUGH = 3  # seeds of the current version, with which it takes the place of the one before
PASS = "CE + edge terms (class_balance 1)"  # balanced by a pass over the labels before the training
FIRST = ("f1_1", "miou")  # scores of the first page
MAIN = ("f1_1", "boundary_iou_005", "miou")
F1 = re.compile(r"f1_\d+")
OF_TOLERANCES = ("f1_1", "f1_3", "f1_5", "f1_any_1", "f1_any_3", "boundary_iou_005", "boundary_iou_02", "trimap_1")
OF_SHAPES = ("precision_1", "recall_1", "hd95", "cldice", "nll_edge", "ece_edge", "ece")
OF_TRAINED = ("f1_1", "f1_any_1", "precision_1", "recall_1", "boundary_iou_005", "miou", "ece_edge")
OF_LONG = ("f1_1", "f1_any_1", "boundary_iou_005", "miou", "ece_edge")
OF_SEEDS = ("f1_1", "f1_any_1", "boundary_iou_005", "miou")
MORE_OF_LONG = ("f1_3", "f1_5", "precision_1", "recall_1", "trimap_1", "ece")
OF_THIN = ("f1_1", "f1_any_1", "cldice", "boundary_iou_005", "miou", "ece_edge")
# The names of scores in tables of docs/quality.md, which explains them; miou has its own already.
SHORT_HEADS = {
    "f1_1": "F1",
    "f1_any_1": "F1, all",
    "boundary_iou_005": "B-IoU",
    "miou": "mIoU",
    "ece_edge": "edge ECE ↓",
}
PARTS_OF_SCHEDULE = {"a quarter": 0.25, "a half": 0.5, "three quarters": 0.75, "the end": 1.0}
# Plans that are scored on held-out images.
TRIALS = ("balance", "focus", "pure", "region", "rivals-tune", "study", "terms")
PRETRAINED, LARGE = "camvid 240 × 180", "camvid 480 × 360"
SETS = ("camvid", "sstem", "topomortar", "dsb2018", "hippocampus")
THIN_SETS = ("vessels", "cracks")
# What the tables of all sets call them.
DATA = {
    "camvid": "CamVid, streets, 11 classes",
    "sstem": "ssTEM, neurons, 5 classes",
    "topomortar": "TopoMortar, bricks, 2 classes",
    "dsb2018": "DSB2018, nuclei, 2 classes",
    "hippocampus": "hippocampus, volumes, 3 classes",
    "vessels": "DRIVE, vessels, 2 classes",
    "cracks": "CrackForest, cracks, 2 classes",
    PRETRAINED: "CamVid 240 × 180, pretrained network",
    LARGE: "CamVid 480 × 360, pretrained network",
}

Lines = Callable[[], list[str]]


class Figures(NamedTuple):
    """Figures of a result.

    Attributes:
        command: what measures them, or prints them from the results.
        tables: by page, the lines of the table.
        sentences: by page, parts of its text.
        results: the file.
    """

    command: str
    tables: dict[str, Lines] = {}  # noqa: RUF012
    sentences: dict[str, Lines] = {}  # noqa: RUF012
    results: str = "quality.jsonl"


def short_heads(lines: Sequence[str]) -> list[str]:
    """Return a table with the short names of scores, which narrow screens have room for."""
    head, *rest = lines
    for name, short in SHORT_HEADS.items():
        head = head.replace(METRICS[name], short)
    return [head, *rest]


def table(heads: str, rows: Iterable[str]) -> list[str]:
    """Return a table in Markdown; heads have a colon where numbers align to the right."""
    return markdown_table(heads.split(" | "), ([row] for row in rows))


# ---------------------------------------------------------------------------------------------------------------- speed


@cache
def speed() -> dict[str, dict[str, Row]]:
    """Return the rows of the loss's time by the instructions of the processor, AVX2 first, and by case."""
    rows = read_rows(RESULTS / "speed.jsonl")
    names = [case.name for cases in CASES.values() for case in cases]
    by_group: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: (row["machine"]["instructions"], names.index(row["case"]))):
        by_group.setdefault(row["machine"]["instructions"], {})[row["case"]] = row
    for group, of_group in by_group.items():
        machines = {(row["machine"]["processor"], row["machine"]["torch"]) for row in of_group.values()}
        if len(machines) != 1:
            raise ValueError(f"speed.jsonl: expected {group} of one machine, but got {machines}; delete the others")
    return by_group


def ratios(case: str) -> str:
    """Return the ratios of a case as cells."""
    by_processor = [rows[case]["ratio"] for rows in speed().values() if case in rows]
    return " | ".join(", ".join(f"{ratio[name]:.2f}" for ratio in by_processor) for name in NAMES[1:])


def cases_table(group: str) -> list[str]:
    """Return the table of a group of cases."""
    rows = []
    for case in CASES[group]:
        row = next(rows[case.name] for rows in speed().values() if case.name in rows)
        held_bytes = ", ".join(f"{size / 1e6:.1f}" for size in row["held_bytes"].values())
        rows.append(f"{case.name} | {row['logits']} {row['dtype']} | {ratios(case.name)} | {held_bytes}")
    return table("case | logits | default: | `region_weight=0`: | held, MB:", rows)


TIMES = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}"
SHORT = {
    "19 classes": "19 classes, 4 images of 512 × 512",
    "binary": "2 classes by one logit, 8 images of 512 × 512",
    "volume": "4 classes, a volume of 64 × 128 × 128",
}


def gpu_ratios() -> dict[str, float]:
    """Return the ratios of the default on a GPU, by case."""
    rows = [row for row in read_rows(RESULTS / "gpu.jsonl") if row["step"] == "speed"]
    return {row["name"]: row[NAMES[1]]["ratio"] for row in rows}


def cost_table() -> list[str]:
    """Return the ratios of the default in the cases of ``SHORT``, on both processors and on a GPU."""
    rows = []
    for case, name in SHORT.items():
        found = [*(rows[case]["ratio"][NAMES[1]] for rows in speed().values()), gpu_ratios()[case]]
        rows.append(" | ".join([name.replace(" × ", TIMES), *(f"{ratio:.2f}" for ratio in found)]))
    return table(" | ".join(["case", *(f"{name}:" for name in (*speed(), "GPU, version 0.3"))]), rows)


def machines(*more: str) -> list[str]:
    """Return what the times depend on, as pages name it."""
    of_rows = [rows["19 classes"]["machine"] for rows in speed().values()]
    processors = [f"{machine['processor']} with {machine['instructions']}" for machine in of_rows]
    return [*processors, ", ".join([*(f"{of_rows[0][name]} {name}" for name in more), f"torch {of_rows[0]['torch']}"])]


def held() -> tuple[float, float]:
    """Return the bytes per pixel that cross-entropy and the loss keep from forward to backward."""
    row = next(iter(speed().values()))["19 classes"]
    pixels = prod(row["logits"]) / row["logits"][1]
    plain, ours = (row["held_bytes"][name] / pixels for name in NAMES[:2])
    return plain, ours


def memory_sentences() -> list[str]:
    """Return the machine of the short table, and what the loss keeps per pixel."""
    plain, ours = held()
    return [*machines(), f"19 classes keep {ours:.0f} bytes per pixel, where cross-entropy keeps {plain:.0f}"]


def step_sentences() -> list[str]:
    """Return what a training step takes."""
    (row,) = read_rows(RESULTS / "step.jsonl")
    share, seconds = row["loss_share"], row["step_seconds"]
    return [f"A step of 4 images takes {seconds:.2f} s, of which the loss takes {100 * share:.1f} %"]


def peers_table() -> list[str]:
    """Return time and memory of every loss alone, the fastest first."""
    rows = sorted(read_rows(RESULTS / "peers.jsonl"), key=lambda row: row["ratio"])
    cells = (f"{r['case']} | {r['milliseconds']:.1f} | {r['ratio']:.2f} | {r['megabytes']:.1f}" for r in rows)
    return table("loss | ms: | × CE: | MB:", cells)


def peers_sentences() -> list[str]:
    """Return what they were measured with, as far as the rows name it."""
    machine = {"edgeloss": "0.3", **read_rows(RESULTS / "peers.jsonl")[0]["machine"]}  # which earlier rows do not name
    named_libraries = [name for name in ("torch", "edgeloss", *LIBRARIES) if name in machine]
    unknown = " and ".join(name for name in LIBRARIES if name not in machine)
    return [
        ", ".join(
            [f"{machine['processor']} with {machine['instructions']}", *(f"{n} {machine[n]}" for n in named_libraries)]
        ),
        *[f"the versions of {unknown} were not recorded"] * bool(unknown),
    ]


def metrics_table() -> list[str]:
    """Return time and memory of the boundary metrics and of other libraries."""
    rows = sorted(read_rows(RESULTS / "metrics.jsonl"), key=lambda row: (row["size"][0], row["milliseconds"]))
    cells = (
        f"{r['metric']} | {r['images']} of {r['size'][0]} × {r['size'][1]} | {r['milliseconds']:.1f}"
        f" | {r['megabytes']:.0f}"
        for r in rows
    )
    return table("metric | images | ms per image: | MB:", cells)


def metrics_sentences() -> list[str]:
    """Return what the images were measured on."""
    row = next(row for row in read_rows(RESULTS / "metrics.jsonl") if row["size"][0] == 512)
    of = row["machine"]
    versions = ", ".join(f"{name} {of[name]}" for name in ("torch", "monai", "torchmetrics"))
    return [f"on an {of['processor']} with {of['instructions']}, {versions}"]


def gpu_table() -> list[str]:
    """Return times on a GPU: of the device, as a ratio, and of Python to enqueue a step."""
    cells = []
    for row in read_rows(RESULTS / "gpu.jsonl"):
        if row["step"] == "speed":
            dtype = "bfloat16" if row["name"] == "bfloat16" else "float32"
            first, *others = (row[name] for name in (*NAMES, OTHERS[0]) if name in row)
            ratios = [f"{cell['microseconds']:.0f} ({cell['ratio']:.2f})" for cell in others]
            ours = sum(others[0]["kernels"].values())
            enqueued = ", ".join(f"{cell['host_microseconds'] / 1e3:.1f}" for cell in (others[0], first))
            cells.append(
                f"{row['name']} | {row['logits']} {dtype} | {first['microseconds']:.0f}"
                f" | {' | '.join([*ratios, ''][:3])} | {ours:.0f} | {enqueued}"
            )
    heads = "case | logits | cross-entropy: | default: | `region_weight=0`: | compiled cross-entropy:"
    return table(f"{heads} | kernels: | to enqueue:", cells)


def hosts() -> dict[str, dict[str, Row]]:
    """Return what Python takes to enqueue a step, by the instructions of the processor, AVX2 first, and by version."""
    by_machine: dict[str, dict[str, Row]] = {}
    for row in sorted(read_rows(RESULTS / "host.jsonl"), key=lambda row: row["machine"]["instructions"]):
        by_machine.setdefault(row["machine"]["instructions"], {})[row["version"]] = row
    return by_machine


def host_table() -> list[str]:
    """Return what Python takes to enqueue a step by a driver that launches nothing."""
    cells, machines = [], hosts().values()
    for name, key in (("default", NAMES[1]), ("`region_weight=0`", NAMES[2])):
        for version in next(iter(machines)):
            launches = {str(rows[version][key]["launches"]) for rows in machines}
            times = [f"{rows[version][key]['microseconds']:.0f}" for rows in machines]
            cells.append(f"{version} | {name} | {' | '.join(times)} | {', '.join(sorted(launches))}")
    plain = [f"{[*rows.values()][-1][NAMES[0]]['microseconds']:.0f}" for rows in machines]
    cells.append(f" | cross-entropy of a pixel, on the CPU | {' | '.join(plain)} | ")
    return table(f"version | loss | {''.join(f'{name}: | ' for name in hosts())}launches:", cells)


def host_sentences() -> list[str]:
    """Return the machines, and which part of the time is left on each."""
    parts, machines = [], []
    for instructions, (first, *_, last) in ((name, [*rows.values()]) for name, rows in hosts().items()):
        machine = last["machine"]
        parts.append(f"{last[NAMES[1]]['microseconds'] / first[NAMES[1]]['microseconds']:.2f} with {instructions}")
        machines.append(f"{machine['processor']}, torch {machine['torch']}, Triton {machine['triton']}")
    return [f"{' and '.join(parts)} of what version {first['version']} takes", *dict.fromkeys(machines)]


# -------------------------------------------------------------------------------------------------------------- quality


def with_all_borders(row: Row) -> Row:
    """Return a row of two classes with F1 of all borders: a border of one is one of the other, so that it is F1."""
    if len(row["classes"]) != 2:
        return row
    found = {name.replace("f1_", "f1_any_"): value for name, value in row["metrics"].items() if F1.fullmatch(name)}
    return row | {"metrics": row["metrics"] | found}


@cache
def results_of(plan: str) -> dict[str, list[Row]]:
    """Return the rows of a plan's runs by their setting, in the order of the plan: none if none has been trained."""
    runs = read_plan(ROOT / f"configs/quality-{plan}.yaml", held_out=plan in TRIALS)
    trained = {key_of(row) for row in read_rows(RESULTS / "quality.jsonl")}
    found = rows_of(RESULTS / "quality.jsonl", runs) if any(run.key in trained for run in runs) else {}
    return {setting: [*map(with_all_borders, rows)] for setting, rows in found.items()}


@cache
def rows_in(setting: str) -> list[Row]:
    """Return the rows of a data set, or of a setting of the pretrained network."""
    plans = ("sets", "rivals", "default", "thin") if setting in (*SETS, *THIN_SETS) else ("pretrained",)
    rows = {key_of(row): row for plan in plans for row in results_of(plan).get(setting, [])}
    return [*rows.values()]


@cache
def quality(setting: str, baseline: str = BASELINE) -> dict[str, Summary]:
    """Return the summaries of one of the data sets, or of a setting of the pretrained network, by loss."""
    return {row["loss"]: row for row in summarize(rows_in(setting), baseline)}


@cache
def ours(setting: str) -> str | None:
    """Return the title of the newest version that was trained with enough seeds; None if there is none."""
    seeds = {loss: len(row["seeds"]) for loss, row in quality(setting).items()}
    return next((loss for loss in (NOW, OURS) if seeds.get(loss, 0) >= ENOUGH), None)


@cache
def best_rival(setting: str) -> str | None:
    """Return the title of the rival with the highest mean of the MAIN scores, of those with two seeds or more.

    The mean is over held-out images where rivals had trials there, and else over the images that all are scored on,
    which favors the chosen one.
    """
    titles = {run_of(row).title for row in rows_in(setting) if run_of(row).loss in RIVALS}
    scored = {loss: row for loss, row in quality(setting).items() if loss in titles and len(row["seeds"]) > 1}
    trials = {row["loss"]: row for row in summarize(results_of("rivals-tune").get(setting, []))}
    judged = {loss: trials[loss] for loss in scored if loss in trials} or scored
    return max(judged, key=lambda loss: fmean(judged[loss]["scores"][name][0] for name in MAIN), default=None)


def shared_rows(setting: str) -> list[Row]:
    """Return the rows of cross-entropy, the best rival and ours, in the seeds that all have; none if one is missing."""
    titles = BASELINE, best_rival(setting), ours(setting)
    if None in titles:
        return []
    seeds = [{run_of(row).seed for row in rows_in(setting) if run_of(row).title == title} for title in titles]
    shared = set.intersection(*seeds)
    rows = [row for row in rows_in(setting) if row["run"]["seed"] in shared]
    return [row for title in titles for row in rows if run_of(row).title == title]


def by_title(rows: Sequence[Row], baseline: str) -> dict[str, Summary]:
    """Return the summaries of some rows by loss, in their order, with the differences to a loss."""
    of_loss = {row["loss"]: row for row in summarize(rows, baseline)}
    return {title: of_loss[title] for title in dict.fromkeys(run_of(row).title for row in rows)}


def compared(baseline: str | None = None) -> dict[str, dict[str, Summary]]:
    """Return the summaries of cross-entropy, the best rival and ours, over the seeds that all have, by setting.

    The differences are those to the baseline, by default to the rival.
    """
    rows = {setting: shared_rows(setting) for setting in (*SETS, *THIN_SETS, PRETRAINED, LARGE)}
    return {setting: by_title(own, str(baseline or best_rival(setting))) for setting, own in rows.items() if own}


def classes_of_set(setting: str) -> dict[str, dict[str, Summary]]:
    """Return the summaries of the three losses for each class, with the differences to cross-entropy."""
    return {name: by_title(rows, BASELINE) for name, rows in by_class(shared_rows(setting)).items()}


def ahead_table(plan: str, baseline: str, *losses: str) -> list[str]:
    """Return how far losses with several seeds are ahead of another one: some of a plan, or all."""
    rows = []
    for setting, results in results_of(plan).items():
        compared = [row for row in summarize(results, baseline) if row["differences"] and len(row["seeds"]) > 1]
        rows += [(setting, row) for row in compared if not losses or row["loss"] in losses]
    return differences_table(rows, MAIN)


def trained(plan: str) -> dict[str, list[Summary]]:
    """Return the summaries of a plan's losses over the seeds that edgeloss was trained with, by setting."""
    summaries = {}
    for setting, results in results_of(plan).items():
        seeds = {row["run"]["seed"] for row in results if row["run"]["loss"] in ("module", "ours")}
        summaries[setting] = summarize(row for row in results if row["run"]["seed"] in seeds)
    return {setting: rows for setting, rows in summaries.items() if len(rows) > 1}  # others have nothing to compare


def trained_table(plan: str, metrics: Sequence[str] = OF_TRAINED) -> list[str]:
    """Return the scores of a plan's losses that some of them have, a row for each loss."""
    rows = [(setting, row) for setting, rows in trained(plan).items() for row in rows]
    return or_none(scores_table(rows, [name for name in metrics if any(name in row["scores"] for _, row in rows)]))


thin_table = partial(trained_table, metrics=OF_THIN)


def long_table(plan: str) -> list[str]:
    """Return the scores of a plan of one setting, without its name, and without the seeds if all have as many."""
    lines = [line.split("|") for line in short_heads(trained_table(plan, OF_LONG))]
    first = 3 if len({seeds for _, _, _, seeds, *_ in lines[2:]}) > 1 else 4
    return ["|".join(cells[:1] + cells[2:3] + cells[first:]) for cells in lines]


def seeds_table(plan: str, own: str = NOW) -> list[str]:
    """Return how far ours is ahead of cross-entropy and two rivals by each seed of both, in a plan of one setting."""
    (rows,) = results_of(plan).values() or [[]]
    cells = []
    for rival in (BASELINE, "CE + Dice", WEIGHTED):
        of_both = [row for row in rows if run_of(row).title in (own, rival)]
        for seed in sorted({run_of(row).seed for row in of_both}):
            of_seed = summarize([row for row in of_both if run_of(row).seed == seed], rival)
            for ahead in (row["differences"] for row in of_seed if row["differences"]):
                shown = (number(name, ahead[name]["mean"], sign="+") if name in ahead else "–" for name in OF_SEEDS)
                cells.append([rival, str(seed), *shown])
    heads = "against", "seed:", *(f"{METRICS[name]}:" for name in OF_SEEDS)
    return or_none(short_heads(markdown_table(heads, cells)))


more_of_long = partial(trained_table, metrics=MORE_OF_LONG)


def losses_table(plan: str) -> list[str]:
    """Return the main scores of a plan's losses, a column for each."""
    rows = {data: {row["loss"]: scores(row) for row in of_data} for data, of_data in trained(plan).items()}
    losses = [*dict.fromkeys(loss for row in rows.values() for loss in row)]
    cells = ([data, *(row.get(loss, "–") for loss in losses)] for data, row in rows.items())
    return markdown_table(["data", *(f"{loss}:" for loss in losses)], cells)


def scores(summary: Summary, names: Iterable[str] = MAIN, *, bold: Collection[str] = ()) -> str:
    """Return mean scores of a summary, some of them in bold; narrow screens do not break them."""
    marks = {name: "**" * (name in bold) for name in names}
    return "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}".join(
        f"{mark}{number(name, summary['scores'][name][0])}{mark}" for name, mark in marks.items()
    )


def ranges(summary: Summary, name: str) -> str:
    """Return the mean difference of a score, in points, and its interval."""
    difference = summary["differences"][name]
    mean, low, high = (number(name, value) for value in (difference["mean"], *difference["interval"]))
    return f"{mean} [{low}, {high}]"


def parts_row(data: str) -> str:
    """Return a row of the five data sets: seeds and scores of the losses of which version 0.3 consists."""
    summaries = [quality(data)[loss] for loss in (BASELINE, CONTROL, NO_REGIONS, OURS)]
    seeds = ", ".join(str(len(summary["seeds"])) for summary in summaries)
    return f"{data} | {seeds} | {' | '.join(map(scores, summaries))}"


def version(loss: str) -> str:
    """Return the version of ours."""
    return "0.3" if loss == OURS else "0.4"


def clearly_above(summary: Summary) -> set[str]:
    """Return the scores in which a loss is clearly above the baseline, which tables of scores have in bold."""
    differences = summary["differences"].items()
    return {name for name, difference in differences if is_clear(difference) and difference["mean"] > 0}


def sets_table() -> list[str]:
    """Return the main scores of ours, cross-entropy and the best rival, by setting."""
    rows = []
    for setting, of_loss in current().items():
        plain, rival, own = of_loss.values()
        cells = (scores(row, bold=clearly_above(row)) for row in (own, plain, rival))
        fewer = f", {len(own['seeds'])} seeds" if len(own["seeds"]) < ENOUGH else ""
        rows.append(f"{DATA[setting]}{fewer} | {' | '.join(cells)}")
    return or_none(table("data | edgeloss: | cross-entropy: | best rival:", rows))


def current() -> dict[str, dict[str, Summary]]:
    """Return what is compared with cross-entropy where the current version was trained with enough seeds."""
    return {setting: of_loss for setting, of_loss in compared(BASELINE).items() if [*of_loss][-1] == NOW}


def with_classes(setting: str) -> str:
    """Return the name of a data set with the number of its classes."""
    name, *_, classes = DATA[setting].split(", ")
    return f"{name}, {classes}"


def first_table() -> list[str]:
    """Return the scores of the first page; narrow screens break them after the slash, and the name of ours."""
    rows = []
    for setting, of_loss in current().items():
        plain, rival, own = of_loss.values()
        cells = (scores(row, FIRST, bold=clearly_above(row)) for row in (own, plain, rival))
        broken = (cell.replace("/\N{NO-BREAK SPACE}", "/ ") for cell in cells)
        rows.append(" | ".join([with_classes(setting), *broken]) + f"<br>{rival['loss']}")
    return or_none(table("data | edge<wbr>loss: | CE: | best rival:", rows))


def against() -> Iterator[tuple[str, str, list[Row]]]:
    """Yield each setting twice with another loss, cross-entropy and the best rival, and the rows of it and of ours."""
    for setting, of_loss in compared().items():
        plain, rival, own = of_loss
        for other in (plain, rival):
            yield setting, other, [row for row in rows_in(setting) if run_of(row).title in (own, other)]


def pairs_of(found: Summary) -> int:
    """Return the number of pairs of trainings that have the main scores."""
    return max(len(found[name]["values"]) for name in MAIN)


def with_pairs(name: str, found: Summary) -> str:
    """Return the difference in a score, and in parentheses its number of pairs where it has fewer than the others."""
    if name not in found:
        return "–"
    count = len(found[name]["values"])
    return ranged(name, found[name]) + f" ({count})" * (count < pairs_of(found))


def ahead_by(*names: str, classes: int = 2) -> list[str]:
    """Return how far ours is ahead of cross-entropy and of the best rival in some scores, by setting.

    Settings with fewer classes are left out.
    """
    cells = []
    for setting, other, rows in against():
        if len(rows[0]["classes"]) < classes:
            continue
        found = next(row["differences"] for row in summarize(rows, other) if row["differences"])
        cells.append([setting, other, str(pairs_of(found)), *(with_pairs(name, found) for name in names)])
    return or_none(markdown_table(["data", "against", "pairs:", *(f"{METRICS[name]}:" for name in names)], cells))


def epochs_table(name: str = "f1_1") -> list[str]:
    """Return how far ours is ahead as the schedule goes, where some parts of it are scored."""
    cells = []
    for setting, other, rows in against():
        shown = []
        for part in PARTS_OF_SCHEDULE.values():
            found = [with_scores_at(row, name, part) for row in rows]
            ahead = [row["differences"] for row in summarize(found, other) if row["differences"]]
            shown.append(ranged(name, ahead[0][name]) if ahead else "–")
        if shown.count("–") < 2:
            cells.append([setting, other, *shown])
    return or_none(markdown_table(["data", "against", *(f"{part}:" for part in PARTS_OF_SCHEDULE)], cells))


def with_scores_at(row: Row, name: str, part: float) -> Row:
    """Return a row whose only score is that after a part of its epochs, none if there is none."""
    curve = row.get("curve", {})
    scored = dict(zip(curve.get("epoch", []), curve.get(name, []), strict=False))
    at = scored.get(part * row["run"]["epochs"])
    return {**row, "metrics": {} if at is None else {name: at}}


def gain(setting: str, loss: str, baseline: str, name: str) -> Summary:
    """Return how far a loss is ahead of another one in a score."""
    rows = [row for row in rows_in(setting) if run_of(row).title in (loss, baseline)]
    return differences(rows, loss, baseline)[name]


def differences(rows: Sequence[Row], loss: str, baseline: str) -> dict[str, Summary]:
    """Return how far a loss is ahead of another one in each score of some rows."""
    found: dict[str, Summary] = next(row["differences"] for row in summarize(rows, baseline) if row["loss"] == loss)
    return found


def where_ahead(name: str, difference: Summary) -> str:
    """Return a difference and its interval, bold where ours is clearly ahead, and in italics where it is behind."""
    mark = "_" * (is_clear(difference) and difference["mean"] < 0)
    return mark + (ranged(name, difference).replace("**", "") if mark else ranged(name, difference)) + mark


def ahead_cells(setting: str, loss: str, baseline: str) -> list[str]:
    """Return how far a loss is ahead of another one in the main scores."""
    return [where_ahead(name, gain(setting, loss, baseline, name)) for name in MAIN]


def leads_table() -> list[str]:
    """Return how far ours is ahead of the best rival of each setting."""
    cells = []
    for setting in current():
        rival = str(best_rival(setting))
        cells.append([f"{DATA[setting].partition(',')[0]}: {rival}", *ahead_cells(setting, NOW, rival)])
    return or_none(short_heads(markdown_table(["data: rival", *(f"{METRICS[name]}:" for name in MAIN)], cells)))


def tuning_sentences() -> list[str]:
    """Return how much better a larger weight of weighted CE + Dice is on held-out images, on average of the scores."""
    ahead = []
    for data in ("camvid", "sstem"):
        tried = {row["loss"]: row for row in summarize(results_of("rivals-tune")[data])}
        used, larger = (fmean(tried[loss]["scores"][name][0] for name in MAIN) for loss in (WEIGHTED, LARGER))
        ahead.append(number("miou", larger - used))
    (rows,) = results_of("borders").values()
    larger, used = (
        scores(row)
        for loss in (LARGER, WEIGHTED)
        for row in summarize(row for row in rows if row["run"]["seed"] in (0, 1))
        if row["loss"] == loss
    )
    return [
        "a weight of 4 instead of 2, tried later, is {} points better on CamVid and {} on ssTEM".format(*ahead),
        f"has {larger} instead of {used}".replace("\N{NO-BREAK SPACE}", " "),
    ]


def leads_sentences() -> list[str]:
    """Return in how many scores of all sets ours is clearly ahead of the best rival, and clearly behind."""
    found = [gain(data, NOW, str(best_rival(data)), name) for data in current() for name in MAIN]
    clear = [difference["mean"] > 0 for difference in found if is_clear(difference)]
    behind = len(clear) - sum(clear) or "none"
    return [f"clearly ahead in {sum(clear)} of {len(found)} scores", f"clearly behind in {behind}"]


def sharper_table() -> list[str]:
    """Return the gain over cross-entropy and the best rival in borders, and in mIoU with and without two classes."""
    names, cells = ("f1_1", "f1_5", "f1_any_1", "miou"), []
    for setting, other, rows in against():
        count = len(rows[0]["classes"])
        if setting not in current() or count < 3:
            continue
        found = differences(rows, NOW, other)
        without = without_most(rows, NOW, other, "miou")
        shown = [with_pairs(name, found) for name in names]
        shown.append(ranged("miou", without["without"]) if without and count > 3 else "–")
        cells.append([setting, other, *(re.sub(r" \[.*?\]", "", cell) for cell in shown)])
    heads = "data | against | F1, 1 px: | F1, 5 px: | F1, all: | mIoU: | without two:"
    return or_none(markdown_table(heads.split(" | "), cells))


def sharper_sentences() -> list[str]:
    """Return how much of the gain in boundary F1 on CamVid is left at 5 pixels, and where classes do not count."""
    narrow, wide = (gain("camvid", NOW, BASELINE, name)["mean"] for name in ("f1_1", "f1_5"))
    left = all_borders("camvid")[0].split()[0]
    return [
        f"{number('f1_5', wide)} of the {number('f1_1', narrow)} points",
        f"of {number('f1_1', narrow)} points of F1 {left} remain where classes do not count",
        "F1 of all borders gains {} points over cross-entropy and {} over {}".format(*all_borders("camvid")),
        *{f"In F1 of all borders it is {all_borders(data)[0].split()[0]} points" for data in ("sstem", "hippocampus")},
    ]


def without_classes() -> list[str]:
    """Return the gain over cross-entropy on CamVid in F1 of all borders, as the first page has it."""
    return [f"and {number('f1_any_1', gain('camvid', NOW, BASELINE, 'f1_any_1')['mean'])} where classes do not count"]


def by_tolerance() -> list[str]:
    """Return that gain within 1 and 3 pixels."""
    near, far = (number(name, gain("camvid", NOW, BASELINE, name)["mean"]) for name in ("f1_any_1", "f1_any_3"))
    return [f"Where classes do not count it is {near} points, and {far} within 3 pixels"]


def all_borders(setting: str) -> list[str]:
    """Return the lead in F1 of all borders over cross-entropy and over the best rival, and which one it is."""
    leads = [gain(setting, NOW, other, "f1_any_1") for other in (BASELINE, str(best_rival(setting)))]
    return [
        *(f"{number('f1_any_1', one['mean'])} {interval('f1_any_1', one['interval'])}" for one in leads),
        named(str(best_rival(setting))),
    ]


def enough_table() -> list[str]:
    """Return how far the current version is ahead of cross-entropy on the sets of two classes."""
    cells = []
    for setting in (data for data, name in DATA.items() if name.endswith(", 2 classes")):
        found = {name: gain(setting, NOW, BASELINE, name) for name in MAIN}
        shown = (ranged(name, difference) for name, difference in found.items())
        cells.append([DATA[setting].removesuffix(", 2 classes"), str(len(found["miou"]["values"])), *shown])
    return short_heads(markdown_table(["data", "seeds:", *(f"{METRICS[name]}:" for name in MAIN)], cells))


def thin_sentences() -> list[str]:
    """Return how far ours is ahead of cross-entropy on both sets of thin structures, and CE + Dice on the second."""
    by_seed = [number("f1_1", value) for value in gain("vessels", NOW, BASELINE, "f1_1")["values"]]
    own, rival = (
        [number(name, gain("cracks", loss, BASELINE, name)["mean"]) for name in ("boundary_iou_005", "miou")]
        for loss in (NOW, "CE + Dice")
    )
    return [
        f"by {', '.join(by_seed[:-1])} and {by_seed[-1]} points",
        f"ahead by {' and '.join(own)} in Boundary IoU and mIoU, and CE + Dice by {' and '.join(rival)}",
    ]


def epochs_sentences(name: str = "f1_1") -> list[str]:
    """Return how far ours is ahead of cross-entropy on CamVid early in the schedule and at its end."""
    rows = [row for row in rows_in("camvid") if run_of(row).title in (BASELINE, NOW)]
    early, late = (
        summarize([with_scores_at(row, name, part) for row in rows])[-1]["differences"][name]["mean"]
        for part in (PARTS_OF_SCHEDULE["a quarter"], PARTS_OF_SCHEDULE["the end"])
    )
    ends = f"{number(name, late)} at its end"
    return [f"from {number(name, early)} points of F1 after a quarter of the schedule to {ends}"]


def gains_table() -> list[str]:
    """Return how far ours is ahead of cross-entropy, with the newest version that was trained."""
    rows = [(setting, quality(setting).get(str(ours(setting)))) for setting in (*SETS, *THIN_SETS)]
    return differences_table([(setting, row) for setting, row in rows if row], MAIN)


def gains_sentences() -> list[str]:
    """Return which of the gains over cross-entropy are left by a correction for the number of losses."""
    gains = {(data, name): quality(data)[NOW]["differences"][name] for data in current() for name in MAIN}
    certain = [(data, name) for (data, name), one in gains.items() if one["p_holm"] < 0.05]
    left = [f"{SHORT_HEADS[name]} on {DATA[data].partition(',')[0]}" for data, name in certain]
    return [f"of these {len(gains)} gains only {' and '.join(left)} has p < 0.05"]


def rival_table() -> list[str]:
    """Return how far the best rival is ahead of ours, by setting."""
    rows = []
    for setting in compared():
        rival, own = str(best_rival(setting)), str(ours(setting))
        of_both = [row for row in rows_in(setting) if run_of(row).title in (rival, own)]
        rows += [(setting, row) for row in summarize(of_both, own) if row["loss"] == rival]
    return differences_table(rows, MAIN)


def since_table() -> list[str]:
    """Return how far version 0.4 is ahead of 0.3, with both balances."""
    rows = []
    for setting, results in (results_of("default") | results_of("pretrained")).items():
        of_ours = [row for row in results if run_of(row).title in (OURS, NOW, BALANCED)]
        rows += [(setting, row) for row in summarize(of_ours, OURS) if row["differences"]]
    return differences_table(rows, (*MAIN, "ece_edge"))


def without_lines() -> list[str]:
    """Return the gain of ours and of the best rival with and without the two classes that gain most."""
    settings = [setting for setting in compared() if len(rows_in(setting)[0]["classes"]) > 3]
    pairs = ((setting, loss) for setting in settings for loss in (ours(setting), best_rival(setting)))
    return without_table(((setting, rows_in(setting), str(loss)) for setting, loss in pairs), BASELINE)


def classes_of(plan: str) -> list[str]:
    """Return the scores of each class under the losses of a plan of one setting."""
    (rows,) = results_of(plan).values()
    return classes_table(rows, [*by_loss(rows)])


def classes_lines(setting: str) -> list[str]:
    """Return the scores of each class under every loss of a setting that was trained with two seeds or more."""
    several = {loss: row for loss, row in quality(setting).items() if len(row["seeds"]) > 1}
    return classes_table(rows_in(setting), [*several])


def images_lines(plan: str | None = None) -> list[str]:
    """Return the differences to cross-entropy in the scores of single images, of a plan or of all data sets."""
    results = results_of(plan) if plan else {setting: rows_in(setting) for setting in (*SETS, *THIN_SETS)}
    pairs = ((setting, rows, loss) for setting, rows in results.items() for loss in by_loss(rows) if loss != BASELINE)
    return or_none(images_table(pairs, BASELINE))


def or_none(lines: list[str]) -> list[str]:
    """Return a table, or one that says that no row of it has been trained."""
    return lines if len(lines) > 2 else markdown_table(["not trained yet"], [])


def tiny_table(name: str, cases: Iterable[tiny_networks.Case]) -> list[str]:
    """Return how many trainings of tiny networks failed under each loss."""
    rows = read_rows(RESULTS / f"{name}.jsonl")
    trained = {row["loss"] for row in rows}
    losses = [loss for loss in tiny_networks.LOSSES if loss in trained]
    return tiny_networks.table(rows, [case.name for case in cases], losses)


def pretrained_table() -> list[str]:
    """Return how far ours is ahead on CamVid with a pretrained network: of cross-entropy, and of the best rivals."""
    cells = []
    for setting, size in {PRETRAINED: "240 × 180", LARGE: "480 × 360"}.items():
        own = str(ours(setting))
        for baseline in dict.fromkeys((BASELINE, str(best_rival(setting)), str(best_rival(LARGE)))):
            seeds = str(len(gain(setting, own, baseline, "miou")["values"]))
            cells.append([f"{size}: {baseline}", seeds, *ahead_cells(setting, own, baseline)])
    return short_heads(markdown_table(["size: against", "seeds:", *(f"{METRICS[name]}:" for name in MAIN)], cells))


def first_sentences() -> list[str]:
    """Return the scores of cross-entropy, ours and the best rival on CamVid, as the first page has them."""
    plain, rival, own = (
        [number(name, row["scores"][name][0]) for name in FIRST] for row in current()["camvid"].values()
    )
    borders = [number("f1_any_1", row["scores"]["f1_any_1"][0]) for row in current()["camvid"].values()]
    return [
        *(f"{before} to {after} %" for before, after in zip(plain, own, strict=True)),
        " and ".join(rival) + " %",
        "{2} % instead of {0} and {1} %".format(*borders),
    ]


def ahead_in(plan: str, loss: str, baseline: str = BASELINE) -> dict[str, float]:
    """Return how far a loss is ahead of another one in each score, in a plan of one setting."""
    (rows,) = results_of(plan).values()
    return {name: one["mean"] for name, one in differences(rows, loss, baseline).items()}


def long_means() -> list[str]:
    """Return the boundary F1 of the four losses of the longer schedule, as captions have it."""
    found = {
        row["loss"]: number("f1_1", row["scores"]["f1_1"][0]) for (rows,) in [trained("long").values()] for row in rows
    }
    losses = {"CE": BASELINE, "weighted CE + Dice": WEIGHTED, "CE + Dice, not shown,": "CE + Dice", "edgeloss": NOW}
    return [", ".join(f"{name} {found[loss]}" for name, loss in losses.items())]


def early_f1(plan: str, loss: str) -> str:
    """Return how many points of boundary F1 a loss is ahead of cross-entropy after 20 epochs of a plan."""
    (rows,) = results_of(plan).values()
    early = [with_scores_at(row, "f1_1", 20 / row["run"]["epochs"]) for row in rows]
    return number("f1_1", differences(early, loss, BASELINE)["f1_1"]["mean"])


def of_long_sentences() -> list[str]:
    """Return how far ours is ahead of cross-entropy with the longer schedule."""
    ahead = ahead_in("long", NOW)
    first, borders, areas = (number(name, ahead[name]) for name in ("f1_1", "f1_any_1", "miou"))
    (rows,) = results_of("long").values()
    return [
        f"gains {first} points of boundary F1 over cross-entropy, {borders} of F1 of all borders and {areas} of mIoU",
        f"it was {early_f1('long', NOW)} points of boundary F1",
        *poles_sentences([row for row in rows if row["run"]["seed"] == 0]),
    ]


def converged_lede() -> list[str]:
    """Return how far ours is ahead of cross-entropy and of the best rival after 100 epochs."""
    plain, rival = (ahead_in("converged", BALANCED, baseline) for baseline in (BASELINE, WEIGHTED))
    borders, areas = number("f1_1", rival["f1_1"]), number("miou", -rival["miou"])
    of_plain = number("f1_1", plain["f1_1"])
    return [
        f"{of_plain} points of F1 ahead of CE and {borders} ahead of {named(WEIGHTED)}, which is {areas} ahead in mIoU"
    ]


def of_converged_sentences() -> list[str]:
    """Return how far ours is ahead of cross-entropy and of the rival after 100 epochs, and of the first after 20."""
    plain, rival = (ahead_in("converged", BALANCED, baseline) for baseline in (BASELINE, WEIGHTED))
    first, borders, bands, areas = (number(name, plain[name]) for name in OF_SEEDS)
    of_rival = dict(zip(OF_SEEDS, (number(name, rival[name], sign="+") for name in OF_SEEDS), strict=True))
    wider = [
        [number(name, row["scores"][name][0]) for row in trained("converged")[PRETRAINED] if row["loss"] in of_losses]
        for name, of_losses in (("f1_5", (BALANCED, "CE + Dice", WEIGHTED)), ("trimap_1", (BALANCED, WEIGHTED)))
    ]
    return [
        f"{first} points of boundary F1 ahead of cross-entropy, {borders} of F1 of all borders,",
        f"{bands} of Boundary IoU and {areas} of mIoU",
        f"after 20 epochs it was {early_f1('converged', BALANCED)} points of boundary F1",
        f"in boundary F1 ({of_rival['f1_1']}) and Boundary IoU ({of_rival['boundary_iou_005']})",
        f"in F1 of all borders ({of_rival['f1_any_1']})",
        f"in mIoU ({of_rival['miou']})",
        f"{first} points of F1 are left after 100 epochs; over the best rival it is {of_rival['f1_1']}",
        "F1 within 5 pixels is {}, theirs {} and {}".format(*wider[0]),
        "weighted CE + Dice in a trimap of 1 pixel ({} and {})".format(*wider[1]),
        *classes_behind_sentences(results_of("converged")[PRETRAINED]),
    ]


def classes_behind_sentences(rows: Sequence[Row]) -> list[str]:
    """Return by how much the IoU of three classes is higher with the rival, and where ours is below cross-entropy."""
    scored = {
        name: {one["loss"]: one["scores"]["miou"][0] for one in summarize(of_class)}
        for name, of_class in by_class(rows).items()
    }
    behind = {name: of_loss[WEIGHTED] - of_loss[BALANCED] for name, of_loss in scored.items()}
    first, second, third = sorted(behind, key=behind.__getitem__, reverse=True)[:3]
    least = min(scored, key=lambda name: scored[name][BALANCED] - scored[name][BASELINE])
    below = number("miou", scored[least][BASELINE] - scored[least][BALANCED])
    points = {name: number("miou", value) for name, value in behind.items()}
    return [
        f"higher by {points[first]} points on {first}s, {points[second]} on {second}s and {points[third]} on {third}s",
        f"On {least}s edgeloss is also {below} points below cross-entropy",
    ]


def poles_sentences(rows: Sequence[Row]) -> list[str]:
    """Return which part of the gain in boundary F1 poles and signs are, and the scores of poles."""
    scored = {
        name: {run_of(row).title: row["metrics"]["f1_1"] for row in of_class}
        for name, of_class in by_class(rows).items()
    }
    ahead = {name: of_loss[NOW] - of_loss[BASELINE] for name, of_loss in scored.items()}
    share = (ahead["pole"] + ahead["sign"]) / sum(ahead.values())
    own, plain, dice = (100 * scored["pole"][loss] for loss in (NOW, BASELINE, "CE + Dice"))
    return [
        f"Poles and signs are {100 * share:.0f} %",
        f"F1 of poles is {own:.0f} % instead of {plain:.0f} %, and {dice:.0f} % with CE + Dice",
    ]


def classes_sentences(setting: str) -> list[str]:
    """Return how much of that are two classes."""
    found = without_most(rows_in(setting), str(ours(setting)), BASELINE, "miou")
    if found is None:
        raise ValueError(f"quality.jsonl: expected rows of {setting}, but got none")
    rest, total = found["without"], number("miou", found["all"]["mean"])
    left = f"{number('miou', rest['mean'])} {interval('miou', rest['interval'])}"
    return [
        f"{' and '.join(found['classes'])} are {100 * found['share']:.0f} % of the {total} points of mIoU",
        f"the other classes gain {left}",
    ]


STRICTER = 0.5  # another limit of failure, to show what depends on it


def failures(limit: float) -> tuple[int, dict[str, int]]:
    """Return the number of trainings on small disks that all losses have, and of those whose Dice is below a limit."""
    dice = {(row["case"], row["loss"], row["seed"]): row["dice"] for row in read_rows(RESULTS / "lesions.jsonl")}
    seeds = {(case, seed) for case, _, seed in dice}
    shared = [key for key in seeds if all((key[0], loss, key[1]) in dice for loss in LESIONS)]
    return len(shared), {loss: sum(dice[case, loss, seed] < limit for case, seed in shared) for loss in LESIONS}


def lesions_sentences(*limits: float) -> list[str]:
    """Return how many failed in words, by the limit of the benchmark and by others."""
    trainings, failed = failures(tiny_networks.FAILED)
    counts = ", ".join(f"{name} in {failed[loss]}" for loss, name in LESIONS.items() if loss != BASELINE)
    others = (
        f"with a limit of {limit:g} it is, in this order, {', '.join(map(str, failures(limit)[1].values()))}"
        for limit in limits
    )
    return [
        f"failed (Dice below {tiny_networks.FAILED:g}) in {failed[BASELINE]} of {trainings} trainings",
        counts,
        *others,
    ]


LESIONS = {
    BASELINE: BASELINE,
    "class-weighted CE": "class-weighted CE",
    "CE + Dice": "CE + Dice",
    "class-weighted CE + Dice": "class-weighted CE + Dice",
    "EdgeAwareLoss()": "edgeloss",
    "EdgeAwareLoss(region_weight=0)": "edgeloss without its region term",
}


def calibration_sentences() -> list[str]:
    """Return how much worse the calibration over all pixels is on three data sets, and at edges on one."""
    vessels, cracks, nuclei = (ranges(quality(data)[str(ours(data))], "ece") for data in (*THIN_SETS, "dsb2018"))
    return [
        f"{vessels} points on DRIVE, {cracks} on CrackForest and {nuclei} on DSB2018",
        f"worse on the hippocampus, by {ranges(quality('hippocampus')[str(ours('hippocampus'))], 'ece_edge')} points",
    ]


@cache
def offsets(plan: str) -> dict[str, list[Row]]:
    """Return the scores of a plan's finished networks at several offsets, by setting."""
    return rows_of(RESULTS / "offsets.jsonl", read_plan(ROOT / f"configs/quality-{plan}.yaml"))


def offsets_table() -> list[str]:
    """Return the scores of each loss at its best offset."""
    rows = []
    for data, results in (offsets("sets") | offsets("long")).items():
        best = best_offsets(results)
        summaries = summarize(at_offsets(results, best))
        rows += [(data, row | {"loss": f"{row['loss']}, t = {best[row['loss']]:g}"}) for row in summaries]
    return scores_table(rows, POINTS)


def offsets_sentences() -> list[str]:
    """Return how far the default is ahead with the best offsets and without."""

    def ahead(data: str, baseline: str, *, shifted: bool = True) -> Summary:
        best = best_offsets(offsets("sets")[data])
        rows = at_offsets(offsets("sets")[data], best if shifted else dict.fromkeys(best, 0.0))
        return next(row for row in summarize(rows, baseline) if row["loss"] == OURS)

    def of_camvid(baseline: str, *, shifted: bool = True) -> list[str]:
        return [ranges(ahead("camvid", baseline, shifted=shifted), name) for name in MAIN]

    (of_long,) = offsets("long").values()
    best = best_offsets(of_long)
    shifted, unshifted = (
        {run_of(row).title: row["metrics"]["f1_1"] for row in at_offsets(of_long, chosen)}
        for chosen in (best, dict.fromkeys(best, 0.0))
    )
    behind = number("f1_1", shifted[WEIGHTED] - shifted[NOW])
    over_plain = number("f1_1", shifted[NOW] - shifted[BASELINE])
    without = "; without, {}, {} and {}".format(*of_camvid(CONTROL, shifted=False))
    return [
        "it is {} points of F1, {} of Boundary IoU and {} of mIoU".format(*of_camvid(CONTROL)) + without,
        "{}, {} and {} with the best offsets".format(*of_camvid(BASELINE)),
        f"weighted CE stays {ranges(ahead('sstem', CONTROL), 'f1_1')} points of F1 behind",
        f"{number('f1_1', unshifted[NOW] - unshifted[WEIGHTED])} points of F1 ahead without an offset",
        f"{behind} points of F1 behind it, and {over_plain} ahead of cross-entropy",
    ]


def landing_table() -> list[str]:
    """Return what is gained in borders, time and memory, and where it was measured."""
    of_plain, kept = held()
    losses = [*compared()["camvid"].values()]
    leads = {name: [100 * row["scores"][name][0] for row in losses] for name in ("f1_1", "f1_any_1", "miou")}
    (borders, *rest), rivals = ([f"{values[of] - values[0]:+.1f}" for values in leads.values()] for of in (-1, 1))
    of_rivals = [f"(best rival: {lead})" for lead in rivals]
    ours_now = losses[-1]["loss"]
    timed = [rows["19 classes"] for rows in speed().values()]
    times = sorted(row["ratio"][NAMES[1]] for row in timed)
    of_one_logit = max(rows["binary"]["ratio"][NAMES[1]] for rows in speed().values())
    versions = sorted({row["machine"].get("edgeloss", "0.3")[:3] for row in timed})  # rows of 0.3 do not name it
    of_version, of_gpu, sign = f"version {' and '.join(versions)}", gpu_ratios(), TIMES.rstrip()
    rows = (
        f"**{borders} points** of boundary F1 {of_rivals[0]}, {rest[0]} of F1 of all borders {of_rivals[1]}, {rest[1]}"
        f" of mIoU {of_rivals[2]} | street scenes of CamVid with 11 classes, version {version(ours_now)},"
        f" {len(losses[0]['seeds'])} seeds",
        f"**{times[0]:.2f} to {times[-1]:.2f}{sign}** the time on a CPU | 19 classes, {of_version}; 2 classes by one"
        f" logit: up to {of_one_logit:.2f}{sign} ([all cases](performance.md))",
        f"**{of_gpu['19 classes']:.2f}{sign}** the time on a GPU | H200, 19 classes, version 0.3; one logit:"
        f" {of_gpu['binary']:.2f}{sign}",
        f"**{kept:.0f} instead of {of_plain:.0f} bytes** per pixel | 19 classes, kept from forward to backward",
    )
    return table("against cross-entropy | measured with", rows)


def of_plan(page: str, lines: Callable[..., list[str]], plan: str, *arguments: str) -> Figures:
    """Return the figures of a table of a page that is made of a plan's results."""
    command = f"{TABLE.replace('val', 'held-out') if plan in TRIALS else TABLE} configs/quality-{plan}.yaml"
    shown = {
        trained_table: OF_TRAINED,
        thin_table: OF_THIN,
        long_table: OF_LONG,
        more_of_long: MORE_OF_LONG,
        seeds_table: OF_SEEDS,
    }
    if lines in shown:
        command += f" --metrics {' '.join(shown[lines])}"
    elif lines is ahead_table:
        command += f' --baseline "{arguments[0]}"'
    return Figures(command, {page: partial(lines, plan, *arguments)})


PEERS = "docs/quality-peers.md"
TABLE = "python benchmarks/quality.py table --split val --plan"
MASKS = "--masks ../shared/camvid/val/masks"
PARTS = "data | seeds: | cross-entropy: | weighted CE: | `region_weight=0`: | `EdgeAwareLoss()` of 0.3:"
FIGURES = {
    "speed": Figures(
        f"python benchmarks/speed.py {MASKS} --threads 2 --table --cliffs --output benchmarks/results/speed.jsonl",
        {
            "docs/performance.md": partial(cases_table, "table"),
            "README.md": cost_table,
        },
        {"docs/performance.md": partial(machines, "cores", "threads"), "README.md": memory_sentences},
        results="speed.jsonl",
    ),
    "cliffs": Figures(
        f"python benchmarks/speed.py {MASKS} --threads 2 --cliffs",
        {"docs/performance.md": partial(cases_table, "cliffs")},
        results="speed.jsonl",
    ),
    "gpu": Figures(
        "python benchmarks/gpu_day.py --workers 14 --output benchmarks/results/gpu.jsonl",
        {"docs/performance.md": gpu_table},
        results="gpu.jsonl",
    ),
    "host": Figures(
        "python benchmarks/gpu/host_time.py --before 0.3.0=DIR --output benchmarks/results/host.jsonl",
        {"docs/performance.md": host_table},
        {"docs/performance.md": host_sentences},
        results="host.jsonl",
    ),
    "step": Figures(
        f"python benchmarks/speed.py step {MASKS} --output benchmarks/results/step.jsonl",
        sentences={"docs/training.md": step_sentences},
        results="step.jsonl",
    ),
    "cost": Figures(
        f"python benchmarks/speed.py peers {MASKS} --output benchmarks/results/peers.jsonl",
        {PEERS: peers_table},
        {PEERS: peers_sentences},
        results="peers.jsonl",
    ),
    "metrics": Figures(
        "python benchmarks/metrics_speed.py --output benchmarks/results/metrics.jsonl",
        {"docs/performance.md": metrics_table},
        {"docs/performance.md": metrics_sentences},
        results="metrics.jsonl",
    ),
    "sets": Figures(
        f"{TABLE} configs/quality-sets.yaml",  # and of "rivals", "default", "pretrained" and "thin"
        {
            "README.md": first_table,
            "docs/quality.md": sets_table,
        },
        {"README.md": first_sentences},
    ),
    "ahead with a pretrained network": Figures(
        f"{TABLE} configs/quality-pretrained.yaml", {"docs/quality.md": pretrained_table}
    ),
    "sharper": Figures(
        f"{TABLE} configs/quality-rivals.yaml --metrics f1_1 f1_5 f1_any_1 miou",
        {"docs/quality.md": sharper_table},
        {"README.md": without_classes, "docs/quality.md": sharper_sentences, PEERS: by_tolerance},
    ),
    "leads": Figures(
        f"{TABLE} configs/quality-rivals.yaml", {"docs/quality.md": leads_table}, {"docs/quality.md": leads_sentences}
    ),
    "tuning": Figures(
        f"{TABLE.replace('val', 'held-out')} configs/quality-rivals-tune.yaml",
        sentences={"docs/quality.md": tuning_sentences},
    ),
    "enough": Figures(f"{TABLE} configs/quality-default.yaml", {"docs/quality.md": enough_table}),
    "parts": Figures(f"{TABLE} configs/quality-sets.yaml", {PEERS: lambda: table(PARTS, map(parts_row, SETS))}),
    "best rival": Figures(f"{TABLE} configs/quality-rivals.yaml", {PEERS: rival_table}),
    "without": Figures(
        f"{TABLE} configs/quality-pretrained.yaml",
        {PEERS: without_lines},
        {
            "README.md": partial(classes_sentences, "camvid"),
            "docs/quality.md": partial(classes_sentences, "camvid"),
            PEERS: partial(classes_sentences, PRETRAINED),
        },
    ),
    "classes": Figures(
        f"{TABLE} configs/quality-pretrained.yaml --classes", {PEERS: partial(classes_lines, PRETRAINED)}
    ),
    "classes from scratch": Figures(
        f"{TABLE} configs/quality-rivals.yaml --classes", {PEERS: partial(classes_lines, "camvid")}
    ),
    "classes of sections": Figures(
        f"{TABLE} configs/quality-rivals.yaml --classes", {PEERS: partial(classes_lines, "sstem")}
    ),
    "images": Figures(f"{TABLE} configs/quality-borders.yaml", {PEERS: images_lines}),
    "since": Figures(f'{TABLE} configs/quality-default.yaml --baseline "{OURS}"', {PEERS: since_table}),
    "landing": Figures(
        "python benchmarks/doc_figures.py --list",  # the commands of "sets" and "speed"
        {"docs/README.md": landing_table},
    ),
    "offsets": Figures(
        "python benchmarks/quality.py offsets configs/quality-sets.yaml --data-root DIR"
        f' --losses cross-entropy "edge-weighted CE" "{OURS}"'
        " && python benchmarks/quality.py offsets configs/quality-long.yaml --data-root DIR",
        {PEERS: offsets_table},
        {PEERS: offsets_sentences},
        results="offsets.jsonl",
    ),
    "tolerances": Figures(
        f"{TABLE} configs/quality-default.yaml --metrics {' '.join(OF_TOLERANCES)}",
        {PEERS: partial(ahead_by, *OF_TOLERANCES, classes=3)},
    ),
    "calibration": Figures(
        f"{TABLE} configs/quality-default.yaml --metrics {' '.join(OF_SHAPES)}",
        {PEERS: partial(ahead_by, *OF_SHAPES)},
        {PEERS: calibration_sentences, "docs/quality.md": calibration_sentences},
    ),
    "epochs": Figures(
        "python benchmarks/quality.py plot --split val --plan configs/quality-default.yaml --curve f1_1",
        {PEERS: epochs_table},
        {"docs/quality.md": epochs_sentences},
    ),
    "default": of_plan(PEERS, trained_table, "default"),
    "inversion": Figures(
        "python benchmarks/inversion.py",
        {PEERS: partial(tiny_table, "inversion", inversion.CASES)},
        results="inversion.jsonl",
    ),
    "lesions": Figures(
        "python benchmarks/lesions.py",
        {PEERS: partial(tiny_table, "lesions", lesions.CASES)},
        {
            "README.md": lesions_sentences,
            PEERS: partial(lesions_sentences, STRICTER),
        },
        results="lesions.jsonl",
    ),
    "gains": Figures(f"{TABLE} configs/quality-sets.yaml", {PEERS: gains_table}, {"docs/quality.md": gains_sentences}),
    "region": of_plan(PEERS, ahead_table, "sets", NO_REGIONS, OURS),
    "rivals": of_plan(PEERS, trained_table, "rivals"),
    "pretrained": of_plan(PEERS, trained_table, "pretrained"),
    "behind": of_plan(PEERS, ahead_table, "pretrained", OURS),
    "thin": of_plan(PEERS, thin_table, "thin"),
    "gain of thin": Figures(f"{TABLE} configs/quality-thin.yaml", sentences={"docs/quality.md": thin_sentences}),
    "long": of_plan("docs/quality.md", long_table, "long"),
    "seeds of long": of_plan("docs/quality.md", seeds_table, "long"),
    "converged": of_plan("docs/quality.md", long_table, "converged"),
    "seeds of converged": of_plan("docs/quality.md", seeds_table, "converged", BALANCED),
    "gain of converged": Figures(
        f"{TABLE} configs/quality-converged.yaml",
        sentences={"README.md": converged_lede, "docs/quality.md": of_converged_sentences},
    ),
    "more of converged": of_plan(PEERS, more_of_long, "converged"),
    "images of converged": of_plan(PEERS, images_lines, "converged"),
    "classes of converged": Figures(
        f"{TABLE} configs/quality-converged.yaml --classes", {PEERS: partial(classes_of, "converged")}
    ),
    "more of long": of_plan(PEERS, more_of_long, "long"),
    "gain of long": Figures(
        f"{TABLE} configs/quality-long.yaml",
        sentences={"docs/quality.md": of_long_sentences, "README.md": long_means, "docs/README.md": long_means},
    ),
    "images of long": of_plan(PEERS, images_lines, "long"),
    "classes of long": Figures(f"{TABLE} configs/quality-long.yaml --classes", {PEERS: partial(classes_of, "long")}),
    "quarter": of_plan("docs/tried.md", losses_table, "quarter"),
    "controls": of_plan("docs/tried.md", losses_table, "controls"),
    "balance": of_plan("docs/tried.md", ahead_table, "balance", PASS),
    "trial of focus": of_plan("docs/tried.md", trained_table, "focus"),
    "trial of pure": of_plan("docs/tried.md", trained_table, "pure"),
    "trial of study": of_plan("docs/tried.md", trained_table, "study"),
    "trial of region": of_plan("docs/tried.md", losses_table, "region"),
    "trial of terms": of_plan("docs/tried.md", losses_table, "terms"),
}


# --------------------------------------------------------------------------------------------------------------- pages


def written(page: str, text: str) -> str:
    """Return a page with its tables from the results.

    Raises:
        ValueError: if the name of a table is missing in the page.
    """
    for name, figures in FIGURES.items():
        if page in figures.tables:
            mark = re.compile(rf"(<!-- figures: {name} -->\n\n)(?:\|.*\n)*\n*")
            if not mark.search(text):
                raise ValueError(f"{page}: expected the comment 'figures: {name}', but got none")
            lines = [unbroken(named(line)) for line in figures.tables[page]()]
            text = mark.sub(lambda match, lines=lines: match[1] + "".join(f"{line}\n" for line in [*lines, ""]), text)
    return text


def unbroken(line: str) -> str:
    """Return a line of a table in which narrow screens break neither a mean from its deviation nor an interval."""
    line = line.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    return re.sub(r"\[(\S+), (\S+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", line)


def missing(page: str, text: str) -> list[str]:
    """Return the sentences that a page should have and has not, in any breaking of lines."""
    plain = " ".join(text.split())
    expected = (figures.sentences.get(page, list)() for figures in FIGURES.values())
    return [sentence for sentences in expected for sentence in sentences if sentence not in plain]


def pages() -> list[str]:
    """Return the pages with figures."""
    return sorted({page for figures in FIGURES.values() for page in (*figures.tables, *figures.sentences)})


def main(root: Path = ROOT) -> int:
    """Compare or write all pages below a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables again")
    parser.add_argument("--list", action="store_true", help="print the commands and their results")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name}, {figures.results}\n    {figures.command}" for name, figures in FIGURES.items()))
        return 0
    wrong = []
    for page in pages():
        path = root / page
        text = path.read_text()
        new = written(page, text)
        if options.write:
            path.write_text(new)
        elif new != text:
            wrong.append(f"{page}: a table differs from its results; run python benchmarks/doc_figures.py --write")
        wrong += [f"{page}: expected the words: {sentence}" for sentence in missing(page, new)]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
