"""Tables in Markdown."""

import pytest

from saywhy.viz.tables import UP, Table, bold_best, code, escape_markdown, markdown


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("a|b", "a\\|b"),
        ("*a* _b_ `c`", "\\*a\\* \\_b\\_ \\`c\\`"),
        ("[text](address)", "[text\\](address)"),
        ("![](address)", "![\\](address)"),
        ("&lt;", "&amp;lt;"),
        ("a\nb", "a\\\\nb"),
        ("\\", "\\\\"),
        ("snake_case, 0.5 [0.4, 0.6], a-b", "snake_case, 0.5 [0.4, 0.6], a-b"),
    ],
)
def test_markup_in_plain_text_is_escaped(text, escaped):
    assert escape_markdown(text) == escaped
    assert escape_markdown(escape_markdown(text)) == escaped


def test_a_cell_cannot_add_columns_or_rows_or_html():
    text = markdown(Table(("model", "score"), [("a|b\n<img src=x>", 1.5), (code("beam|5"), 2.5)]))
    assert text.splitlines()[2:] == ["| a\\|b\\\\n&lt;img src=x> | 1.5 |", "| `beam\\|5` | 2.5 |"]


def test_code_is_not_ended_by_a_backtick_in_it():
    assert code("a``b") == "``` a``b ```"
    assert code("tok:ptb|refs:5") == "`tok:ptb|refs:5`"


def test_bold_cells_stay_bold_in_a_table():
    cells = bold_best([0.1, 0.3], ["0.1", "0.3"], UP)
    assert markdown(Table(("a", "b"), [cells])).splitlines()[-1] == "| 0.1 | **0.3** |"


def test_a_caption_stands_above_its_table():
    assert markdown(Table(("a",), [("b",)], caption="Words.")) == "Words.\n\n| a |\n| --- |\n| b |\n"
