"""Text and cells of tables as LaTeX spells them, everything escaped."""

import re

from posstats.results.cells import one_line

_ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "²": r"\textsuperscript{2}", "–": "--", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def tex(text: str) -> str:
    r"""Text on one line, with what means something to LaTeX escaped.

    >>> print(tex('two-sided test of "the share is 0", 95% intervals'))
    two-sided test of ``the share is 0'', 95\% intervals
    """
    escaped = "".join(_ESCAPED.get(character, character) for character in one_line(text))
    return re.sub(r'"([^"]*)"', r"``\1''", escaped).replace('"', "''")


def tex_text(cell: str) -> str:
    """A cell of a column of text."""
    # The braces keep a row that begins with a bracket from being read as an argument of \\.
    return tex(cell).replace("[", "{[}")


def tex_number(cell: str) -> str:
    r"""A cell of a column of numbers, which are typeset as mathematics.

    >>> [tex_number(cell) for cell in ("0.500", "-0.500", "3.20e-09", "<1e-6", "–")]
    ['0.500', '$-0.500$', '$3.20 \\times 10^{-9}$', '$<10^{-6}$', '--']
    >>> tex_number("(-inf, -0.5] or [1.5, inf)")
    '($-\\infty$, $-0.5$] or {[}1.5, $\\infty$)'
    """
    if cell.startswith(("[", "(")):
        return re.sub(r"[^][(), ]+", lambda part: part[0] if part[0] == "or" else tex_number(part[0]), cell).replace(
            "[", "{[}"
        )
    if cell.endswith("inf"):
        return f"${cell.replace('inf', chr(92) + 'infty')}$"
    number = cell.removeprefix("<")
    mantissa, exponent, power = number.partition("e")
    try:
        float(number)
    except ValueError:
        return tex_text(cell)
    if number != cell:
        return rf"$<10^{{{int(power)}}}$"
    if exponent:
        return rf"${mantissa} \times 10^{{{int(power)}}}$"
    return f"${cell}$" if cell.startswith("-") else cell
