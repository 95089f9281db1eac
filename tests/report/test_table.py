"""Tables: 80 columns, plain, whatever the cells."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from memopt.report import WIDTH, Table

TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60)


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=6), st.text(max_size=200), TEXT)
def test_no_line_is_wider_than_80_columns(rows, note, header):
    table = Table("title", (header, "b", "c"), tuple(rows), (note,))
    assert all(len(line) <= WIDTH for line in str(table).splitlines())


def test_text_is_canonical():
    table = Table("T", ("name", ">n"), (("a", "1"), (), ("bb", "10")), ("Note.",))
    assert str(table) == "T\n\nname   n\n----  --\na      1\n----  --\nbb    10\n\nNote."


def test_long_cells_are_cut_and_say_so():
    text = str(Table("T", ("name", ">n"), (("x" * 100, "1"),)))
    assert "..." in text
    assert text.endswith("1")


def words(text):
    return [word for word in text.split() if set(word) != {"-"}]


def test_rich_form_has_the_same_words():
    from rich.console import Console

    table = Table("T", ("verdict", ">n"), (("ok", "1"), (), ("WRONG: 2 lost", "10")), ("Note.",))
    stream = io.StringIO()
    Console(file=stream, width=80, force_terminal=True, color_system="truecolor").print(table)
    plain = io.StringIO()
    Console(file=plain, width=80).print(table)
    assert "\x1b[" in stream.getvalue()
    assert words(plain.getvalue()) == words(str(table))


def test_a_table_without_columns_is_its_title():
    assert str(Table("Nothing.", (), ())) == "Nothing."
