"""What `edgeguardctl incidents` shows: the list, one incident's story, or its page.

Must not: draw (incidentpage does). Upstream: recordings, core.incidents. Downstream: incidents.
"""

import argparse
import json
import sys
from typing import Any

from edgeguardd.cli import common, incidentpage, words
from edgeguardd.cli.recordings import Recordings, clock_time
from edgeguardd.core.decisions import Decision, as_json
from edgeguardd.core.incidents import HowEnded, Incident, Moment, incidents
from edgeguardd.core.replay import recorded
from edgeguardd.errors import EdgeguardError

MAX_SENTENCE_CHARS = 300

HOW = {
    HowEnded.NORMAL: "",
    HowEnded.DROPPED: "the target was dropped",
    HowEnded.RECORDING_ENDS: "not over when the recording ends",
}


def run(args: argparse.Namespace) -> int:
    """Find the incidents, and print what the options ask for. Returns the exit status. Raises EdgeguardError."""
    recordings = Recordings(args.directory)
    found = incidents(recordings.watched(recorded(recordings, recordings.unusable)))
    found.reverse()
    if args.number is None:
        print(json.dumps([_json(number, one) for number, one in enumerate(found, 1)]) if args.json else _table(found))
    else:
        _tell(_chosen(found, args.number), args)
    for remark in recordings.remarks:
        print(f"edgeguardctl: {words.name(remark, MAX_SENTENCE_CHARS)}", file=sys.stderr)
    return common.OK


def _chosen(found: list[Incident], number: int) -> Incident:
    if number > len(found):
        have = f"there are {len(found)}" if found else "there is none"
        raise EdgeguardError(f"cannot tell incident {number}: {have}; see edgeguardctl incidents")
    return found[number - 1]


def _tell(incident: Incident, args: argparse.Namespace) -> None:
    if args.html is not None:
        _write(args.html, incidentpage.page(incident))
    elif args.json:
        print(json.dumps(_whole(args.number, incident)))
    else:
        print("\n".join(_story(incident)))


def _write(path: str, page: str) -> None:
    if path == "-":
        print(page, end="")
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise EdgeguardError(f"cannot write {path}: {error.strerror}; name a file that can be written") from None


def _table(found: list[Incident]) -> str:
    if not found:
        return "No incident: no target was above normal in these recordings."
    header = ("N", "BEGAN", "TARGET", "WORST", "LASTED", "COMMANDS", "FREED", "")
    rows = [
        [
            str(number),
            clock_time(one.start_s),
            words.name(one.target),
            one.worst.word,
            words.span(one.duration_s),
            str(one.commands),
            words.size(one.freed_bytes),
            ", ".join(_remarks(one)),
        ]
        for number, one in enumerate(found, 1)
    ]
    return "\n".join(words.table(header, rows))


def _remarks(incident: Incident) -> list[str]:
    """What is unusual about an incident."""
    found = ["began before the recording"] if incident.began_before else []
    if HOW[incident.how_ended]:
        found.append(HOW[incident.how_ended])
    if incident.last_resorts:
        found.append(f"{incident.last_resorts} last resorts")
    if incident.refused:
        found.append(f"{incident.refused} requests refused")
    return found


def _story(incident: Incident) -> list[str]:
    """One line a decision or fact, with the seconds since the beginning."""
    head = (
        f"{words.name(incident.target)}: {incident.worst.word} at worst, {words.span(incident.duration_s)} from "
        f"{clock_time(incident.start_s)}, {incident.commands} commands, {words.size(incident.freed_bytes)} freed"
    )
    lines = [head, *_remarks(incident)]
    for told in incident.story:
        since = f"{told.wall_s - incident.start_s:+9.3f}s"
        lines.append(f"{since}  {words.name(told.sentence, MAX_SENTENCE_CHARS)}")
    if incident.untold:
        lines.append(f"and {incident.untold} more")
    return lines


def _json(number: int, incident: Incident) -> dict[str, Any]:
    """The figures of the list."""
    return {
        "number": number,
        "target": incident.target,
        "start_s": incident.start_s,
        "end_s": incident.end_s,
        "duration_s": round(incident.duration_s, 6),
        "worst": incident.worst.word,
        "commands": incident.commands,
        "freed_bytes": incident.freed_bytes,
        "last_resorts": incident.last_resorts,
        "granted": incident.granted,
        "refused": incident.refused,
        "began_before": incident.began_before,
        "how_ended": incident.how_ended.value,
    }


def _whole(number: int, incident: Incident) -> dict[str, Any]:
    """The figures, the story and the curve."""
    return {
        **_json(number, incident),
        "levels": [[wall_s, level.word] for wall_s, level in incident.levels],
        "story": [_told(told) for told in incident.story],
        "untold": incident.untold,
        "curve": [{name: getattr(point, name) for name in point.__struct_fields__} for point in incident.curve],
    }


def _told(told: Decision | Moment) -> dict[str, Any]:
    if isinstance(told, Decision):
        return as_json(told)
    return {"wall_s": told.wall_s, "kind": "fact", "what": told.what, "sentence": told.sentence}
