"""Convert the Markdown documentation to HTML pages in `site/`. The pages need no network, and have a dark mode."""

import re
import shutil
from pathlib import Path

import markdown

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "index": "README.md",
    "returns": "docs/returns.md",
    "gpu": "docs/gpu.md",
    "safety": "docs/safety.md",
    "online": "docs/online.md",
    "evaluation": "docs/evaluation.md",
    "evaluation-studies": "docs/evaluation-studies.md",
    "agent": "docs/agent.md",
    "experiments": "docs/experiments.md",
    "atari": "docs/results/atari.md",
    "statistics": "docs/statistics.md",
    "doctor": "docs/doctor.md",
    "deviations": "docs/deviations.md",
    "reliability": "docs/reliability.md",
    "versions": "docs/versions.md",
    "changelog": "CHANGELOG.md",
}

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 52rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
nav { display: flex; flex-wrap: wrap; gap: 0 1rem; }
nav { border-bottom: 1px solid var(--line); padding: .5rem 0; margin-bottom: 1rem; }
pre, code { font: 14px/1.45 ui-monospace, monospace; background: var(--soft); border-radius: 4px; }
pre { padding: .8rem; overflow-x: auto; } code { padding: 0 .2em; } pre code { background: none; padding: 0; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
img { max-width: 100%; background: white; }
@media print { nav { display: none; } }
"""


def _link_target(file: Path, site: Path) -> str:
    """Return the path of a project file in the site: its page, or a copy of the file."""
    path = file.resolve().relative_to(ROOT).as_posix()
    for name, source in PAGES.items():
        if path == source:
            return f"{name}.html"
    place = path.removeprefix("docs/")
    (site / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, site / place)
    return place


def _with_site_links(source: Path, site: Path) -> str:
    """Return the Markdown of a file, with links to project files replaced by links within the site."""

    def replace(link: re.Match[str]) -> str:
        file, anchor = link.groups(default="")
        return f"]({_link_target(source.parent / file, site)}{anchor})"

    # [text](file) or [text](file#anchor), but not [text](https://...) or [text](#anchor)
    return re.sub(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", replace, source.read_text(encoding="utf-8"))


def build(site: Path) -> list[Path]:
    """Write all pages and images to the folder `site`, which is emptied first. Return the paths of the pages."""
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "images", site / "images")
    menu = "".join(f'<a href="{name}.html">{name}</a>' for name in PAGES)
    written = []
    for name, source in PAGES.items():
        text = _with_site_links(ROOT / source, site)
        body = markdown.markdown(text, extensions=["tables", "fenced_code", "toc"])
        body = re.sub(r"<td>\([\d, ]+\)</td>", lambda size: size[0].replace(" ", "&nbsp;"), body)  # on one line
        page = site / f"{name}.html"
        page.write_text(
            '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>offtrace: {name}</title><style>{STYLE}</style><nav>{menu}</nav><main>{body}</main></html>\n",
            encoding="utf-8",
        )
        written.append(page)
    return written


if __name__ == "__main__":
    for page in build(ROOT / "site"):
        print(page.relative_to(ROOT))
