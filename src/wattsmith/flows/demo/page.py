"""The demo as one page that needs nothing else: no network, no script, light or dark as the reader has it."""

from html import escape

from wattsmith.flows.demo.facts import BROKE, DONE, LEFT_OUT, Demo, Figure, Stage
from wattsmith.terms.quantity import format_quantity

_STYLE = """
:root{color-scheme:light dark;--ground:#fbfaf8;--card:#fff;--ink:#1c2024;--soft:#5d666e;--line:#e3e0da;--first:#0b7a75;
--second:#d1791f;--bad:#c0392b;--mark:#eef6f5;--code:#f3f1ec}
@media (prefers-color-scheme:dark){:root{--ground:#14171a;--card:#1c2125;--ink:#e8e6e1;--soft:#9aa4ac;--line:#30373d;
--first:#3fb8ae;--second:#e9a04f;--bad:#ef6f61;--mark:#1b2b2c;--code:#23292e}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.2rem 1rem 3rem}
h1{font-size:clamp(1.6rem,5vw,2.4rem);line-height:1.15;margin:1.4rem 0 .5rem;letter-spacing:-.02em}
h2{font-size:1.25rem;line-height:1.3;margin:0}
.lead{font-size:1.1rem;color:var(--soft);margin:0 0 1.4rem;max-width:46rem}
.about{color:var(--soft);font-size:.9rem}
section,nav{background:var(--card);border:1px solid var(--line);border-radius:12px;
padding:1.1rem 1.2rem;margin:0 0 1.1rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.7rem;margin:0 0 1.1rem}
.tiles a{background:var(--card);border:1px solid var(--line);border-top:4px solid var(--first);border-radius:12px;
padding:.8rem .9rem;color:inherit;text-decoration:none}.tiles b{display:block;font-size:1.45rem;line-height:1.2;
letter-spacing:-.02em;font-variant-numeric:tabular-nums}.tiles span{color:var(--soft);font-size:.86rem;line-height:1.35;
display:block;margin-top:.25rem}
nav ol{list-style:none;margin:0;padding:0}
nav li{display:grid;grid-template-columns:1.9rem 1fr auto;gap:.1rem .7rem;padding:.55rem 0;
border-top:1px solid var(--line)}
nav li:first-child{border-top:0}
nav a{color:inherit;font-weight:600;text-decoration:none}nav a:hover{text-decoration:underline}
nav p{grid-column:2/-1;margin:0;color:var(--soft);font-size:.95rem}
.number{flex:none;width:1.75rem;height:1.75rem;border-radius:50%;background:var(--first);color:var(--card);display:grid;
place-items:center;font-weight:700;font-size:.9rem}
.left .number{background:var(--soft)}.broke .number{background:var(--bad)}
.took{color:var(--soft);font-size:.85rem;white-space:nowrap;padding-top:.15rem}
header{display:flex;gap:.7rem;align-items:flex-start}header .took{margin-left:auto}
.means{font-size:1.06rem;background:var(--mark);border-left:4px solid var(--first);border-radius:6px;
padding:.7rem .9rem;margin:.9rem 0}.left .means{border-color:var(--soft)}.broke .means{border-color:var(--bad)}
table{border-collapse:collapse;width:100%;font-size:.93rem;margin:.4rem 0}
th{font-weight:600;text-align:left;color:var(--soft);font-size:.8rem}
th,td{padding:.45rem .9rem .45rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td.figure{font-weight:650;font-variant-numeric:tabular-nums}td.name{width:23%}td.figure{width:27%}td.from{width:25%}
td.from,td.trust{color:var(--soft);font-size:.86rem}
svg{display:block;width:100%;max-width:40rem;height:auto;margin:.9rem auto .2rem;font-size:13px}
svg text{fill:var(--ink)}svg .title{font-weight:650;font-size:14px}svg .tick,svg .axis{fill:var(--soft);font-size:12px}
svg .dot-label{fill:var(--soft);font-size:11px}svg .inside{fill:var(--card);font-weight:650}
svg .grid{stroke:var(--line);fill:none}svg .fill.first{fill:var(--first)}svg .fill.second{fill:var(--second)}
svg .range{stroke:var(--ink);stroke-width:1.6;fill:none}svg .bad{stroke:var(--bad);stroke-width:2.4;fill:none}
svg .ring{stroke:var(--second);stroke-width:2.6;fill:none}svg .limit{stroke:var(--bad);stroke-dasharray:5 4;fill:none}
svg .limit-text{fill:var(--bad);font-size:12px}
details{margin:.7rem 0 0;color:var(--soft);font-size:.9rem}summary{cursor:pointer}details ul{padding-left:1.1rem}
details li{overflow-wrap:anywhere;margin:.3rem 0}
pre{background:var(--code);border-radius:8px;padding:.7rem .9rem;overflow-x:auto;font-size:.84rem;margin:.7rem 0 0;
white-space:pre-wrap;overflow-wrap:anywhere}
.yourself{color:var(--soft);font-size:.86rem;margin:1rem 0 -.4rem}
footer{color:var(--soft);font-size:.88rem}
@media (max-width:620px){thead{display:none}table,tbody,tr,td{display:block;width:100%!important}
td{border:0;padding:.05rem 0}tr{border-bottom:1px solid var(--line);padding:.55rem 0}
td.from::before{content:"from: "}td.trust::before{content:"trust: "}
td.name{color:var(--soft)}td.figure{font-size:1.02rem}.tiles{grid-template-columns:1fr 1fr;gap:.5rem}
.tiles a:last-child:nth-child(odd){grid-column:1/-1}.tiles b{font-size:1.15rem}.tiles a{padding:.6rem .7rem}
section,nav{padding:.9rem .9rem}}
"""
HEAD = "<th>figure</th><th></th><th>where it comes from</th><th>how far to trust it</th>"
LEAD = (
    "Time, memory, power and energy of machine-learning jobs: measured truthfully, predicted before they run, and "
    "lowered. Every figure says where it comes from and how far to trust it."
)
_WORDS = {DONE: "", LEFT_OUT: "left", BROKE: "broke"}


def page_of(demo: Demo) -> str:
    """The whole page."""
    stages = "".join(_section(number, stage) for number, stage in enumerate(demo.stages, 1))
    lines = "".join(_line(number, stage) for number, stage in enumerate(demo.stages, 1))
    took = format_quantity(demo.took_s, "time", 2)
    about = f"wattsmith {demo.version}, {demo.began_at[:16].replace('T', ' ')} UTC, {took} on this machine"
    if demo.quick:
        about += "; the quick variant: everything is small and short, so its figures say little"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Wattsmith on this machine</title>'
        f"<style>{_STYLE}</style></head><body><main>\n<h1>{escape(headline(demo))}</h1>\n"
        f'<p class="lead">{LEAD}</p>\n'
        f"{_tiles(demo)}"
        f'<nav aria-label="Stages"><ol>{lines}</ol></nav>\n{stages}'
        f"<footer><p>{escape(about)}. This page holds all of it and fetches nothing.</p></footer>\n"
        "</main></body></html>\n"
    )


def _tiles(demo: Demo) -> str:
    """The figures to remember."""
    tiles = "".join(
        f'<a href="#{stage.name}"><b>{escape(stage.tile[0])}</b><span>{escape(stage.tile[1])}</span></a>'
        for stage in demo.stages
        if stage.tile
    )
    return f'<div class="tiles">{tiles}</div>\n' if tiles else ""


def headline(demo: Demo) -> str:
    """What was done, in a line."""
    done = sum(stage.status == DONE for stage in demo.stages)
    if done == len(demo.stages):
        return "Measured, predicted, tuned and fed: what your machine did in " + _minutes(demo.took_s)
    return f"{done} of {len(demo.stages)} stages ran on your machine in {_minutes(demo.took_s)}"


def _minutes(took_s: float) -> str:
    minutes = round(took_s / 60)
    return f"{took_s:.0f} seconds" if took_s < 90 else f"{minutes} minutes"


def _line(number: int, stage: Stage) -> str:
    return (
        f'<li class="{_WORDS[stage.status]}"><span class="number">{number}</span>'
        f'<a href="#{stage.name}">{escape(stage.title)}</a><span class="took">{_took(stage)}</span>'
        f"<p>{escape(_said(stage))}</p></li>"
    )


def _took(stage: Stage) -> str:
    return format_quantity(stage.took_s, "time", 2) if stage.status == DONE else stage.status


def _said(stage: Stage) -> str:
    return stage.means if stage.status == DONE else f"{stage.status.capitalize()}: {stage.why}"


def _section(number: int, stage: Stage) -> str:
    body = f'<p class="means">{escape(_said(stage))}</p>' + "".join(stage.pictures)
    if stage.figures:
        rows = "".join(_row(one) for one in stage.figures)
        head = (
            "<thead><tr><th>figure</th><th></th><th>where it comes from</th><th>how far to trust it</th></tr></thead>"
        )
        body += f"<table>{head}<tbody>{rows}</tbody></table>"
    if stage.notes:
        notes = "".join(f"<li>{escape(one)}</li>" for one in stage.notes)
        body += f"<details><summary>What else to know: {len(stage.notes)}</summary><ul>{notes}</ul></details>"
    if stage.yourself:
        body += f'<p class="yourself">On your own work:</p><pre>{escape(stage.yourself)}</pre>'
    return (
        f'<section id="{stage.name}" class="{_WORDS[stage.status]}"><header><span class="number">{number}</span>'
        f'<h2>{escape(stage.title)}</h2><span class="took">{_took(stage)}</span></header>{body}</section>\n'
    )


def _row(one: Figure) -> str:
    return (
        f'<tr><td class="name">{escape(one.name)}</td><td class="figure">{escape(one.text)}</td>'
        f'<td class="from">{escape(one.source)}</td><td class="trust">{escape(one.trust)}</td></tr>'
    )
