"""An incident as one HTML page: figures, the picture, and all that happened, in one file without a script.

Must not: load anything, run anything, trust a name. Upstream: core.incidents, incidentplot. Downstream: incidents.
"""

import html

from edgeguardd import __version__
from edgeguardd.cli import words
from edgeguardd.cli.incidentplot import plot
from edgeguardd.cli.recordings import clock_time, local
from edgeguardd.core.decisions import Decision
from edgeguardd.core.incidents import HowEnded, Incident, Moment

_STYLE = """\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --faint: #5c6670; --grid: #e3e7eb;
  --needed: #0b62a8; --area: #0b62a822; --static: #7b8794; --elevated: #8a6d00; --high: #b45309; --critical: #b91c1c;
  --limit: #7f1d1d; --normal-band: #d5ead8; --elevated-band: #f5e6a3; --high-band: #f7c98b; --critical-band: #e5706b;
  --emergency-band: #7f1d1d; --good: #2e7d32; --bad: #c62828; --void: #8a939c; --kernel: #6a1b9a; --relief: #00796b; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e6e9ec; --faint: #9aa5b0; --grid: #2a3138;
  --needed: #5db2f5; --area: #5db2f52b; --static: #8a96a3; --elevated: #e2c044; --high: #f0963c; --critical: #f2706a;
  --limit: #ff9d97; --normal-band: #234a2b; --elevated-band: #6b5a12; --high-band: #8a4f14; --critical-band: #9e2f2b;
  --emergency-band: #e04a44; --good: #66bb6a; --bad: #ef6b66; --void: #78828c; --kernel: #c98be8; --relief: #4db6ac; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
p { margin: .25rem 0; }
.faint { color: var(--faint); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl div { border-left: 3px solid var(--grid); padding-left: .6rem; }
dt { color: var(--faint); font-size: .8rem; }
dd { margin: 0; font-weight: 600; }
.plot { overflow-x: auto; margin: 0 -1rem; padding: 0 1rem; }
svg { display: block; width: 100%; min-width: 46rem; height: auto; font: 12px system-ui, sans-serif; }
.axis { fill: var(--faint); } .grid { stroke: var(--grid); }
.needed { fill: none; stroke: var(--needed); stroke-width: 2; stroke-linejoin: round; } .area { fill: var(--area); }
.mark { fill: none; stroke-width: 1.4; stroke-dasharray: 6 4; }
.mark.static { stroke: var(--static); stroke-dasharray: 1 4; } .mark.elevated { stroke: var(--elevated); }
.mark.high { stroke: var(--high); } .mark.critical { stroke: var(--critical); }
.mark.limit { stroke: var(--limit); stroke-width: 2; stroke-dasharray: none; }
.name.elevated { fill: var(--elevated); } .name.high { fill: var(--high); } .name.critical { fill: var(--critical); }
.name.limit { fill: var(--limit); font-weight: 600; }
.level-normal { fill: var(--normal-band); } .level-elevated { fill: var(--elevated-band); }
.level-high { fill: var(--high-band); } .level-critical { fill: var(--critical-band); }
.level-emergency { fill: var(--emergency-band); }
.on-normal, .on-elevated, .on-high, .on-critical { fill: var(--ink); } .on-emergency { fill: #ffffff; }
.asked { stroke: var(--faint); stroke-dasharray: 2 3; stroke-opacity: .5; }
.bar { fill: var(--bad); } .outcome-done { fill: var(--good); }
.outcome-superseded, .outcome-dropped, .outcome-open { fill: var(--void); }
.ack { fill: var(--paper); stroke: var(--ink); stroke-width: 1.5; }
.sign-kernel { fill: var(--kernel); stroke: var(--kernel); }
.sign-relief { fill: var(--relief); stroke: var(--relief); }
.sign-resort { fill: var(--bad); stroke: var(--bad); } line[class^="sign"] { stroke-opacity: .35; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .5rem 0; font-size: .8rem; color: var(--faint); }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem;
  vertical-align: -.08rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td { padding: .3rem .5rem .3rem 0; border-top: 1px solid var(--grid); vertical-align: top; overflow-wrap: anywhere; }
td:first-child { white-space: nowrap; font-variant-numeric: tabular-nums; color: var(--faint); }
td:nth-child(2) { white-space: nowrap; }
@media (max-width: 34rem) { td:nth-child(2) { display: none; } }
"""

_LEGEND = (
    ("needed", "needed bytes"),
    ("static", "held at rest"),
    ("good", "command done"),
    ("bad", "failed, expired, without effect; last resort"),
    ("void", "superseded, or not over"),
    ("kernel", "kernel counters"),
    ("relief", "memory.high lifted, put back"),
)

_HOW = {
    HowEnded.NORMAL: "",
    HowEnded.DROPPED: " The target was dropped before it was normal again.",
    HowEnded.RECORDING_ENDS: " It was not over when the recording ends.",
}


def page(incident: Incident) -> str:
    """The page."""
    target = _escaped(incident.target)
    began = "It had begun before the recording." if incident.began_before else ""
    zone = local(incident.start_s).strftime("%Z (%z)")
    facts = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _facts(incident))
    legend = "".join(f'<span><i style="background: var(--{css})"></i>{text}</span>' for css, text in _LEGEND)
    rows = "\n".join(_row(told, incident.start_s) for told in incident.story)
    more = f'<p class="faint">and {incident.untold} more</p>' if incident.untold else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{target}: {incident.worst.word}, {clock_time(incident.start_s)}</title>
<style>
{_STYLE}</style>
</head>
<body>
<h1>{target}: {incident.worst.word} at worst</h1>
<p class="faint">{clock_time(incident.start_s)} to {clock_time(incident.end_s)}, {_escaped(zone)}.
{began}{_HOW[incident.how_ended]}</p>
<dl>{facts}</dl>
<div class="plot">
{plot(incident)}
</div>
<p class="legend">{legend}</p>
<h2>What happened</h2>
<table>
{rows}
</table>
{more}
<p class="faint">Written by edgeguardctl {__version__} from a flight recording.</p>
</body>
</html>
"""


def _facts(incident: Incident) -> list[tuple[str, str]]:
    """The figures at the top."""
    peak = max(incident.curve, key=lambda point: point.needed_bytes, default=None)
    found = [
        ("above normal for", words.span(incident.duration_s)),
        ("commands", str(incident.commands)),
        ("freed", words.size(incident.freed_bytes)),
    ]
    if peak is not None:
        found.append(("needed at most", words.size(peak.needed_bytes)))
        if peak.limit_bytes is not None:
            found.append(("of the limit", words.share(peak.needed_bytes / max(1, peak.limit_bytes))))
    if incident.last_resorts:
        found.append(("last resorts", str(incident.last_resorts)))
    if incident.granted or incident.refused:
        found.append(("requests refused", f"{incident.refused} of {incident.granted + incident.refused}"))
    return found


def _row(told: Decision | Moment, start_s: float) -> str:
    kind = told.kind.replace("_", " ") if isinstance(told, Decision) else told.what
    since = f"{told.wall_s - start_s:+.3f} s"
    return f'<tr><td>{since}</td><td class="faint">{kind}</td><td>{_escaped(told.sentence)}</td></tr>'


def _escaped(text: str) -> str:
    return html.escape(words.name(text, 400))
