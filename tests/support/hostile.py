"""A name that would act in HTML if it were not escaped."""

from __future__ import annotations

#: Names that would do harm where they are taken for anything but names.
HOSTILE = (
    "<script>document.title='harmed'</script>",
    "</script><img src=x onerror=\"document.title='harmed'\">",
    "\"' onmouseover='alert(1)' x=\"",
    "\u202egnp.exe \u2066$(touch harmed) `touch harmed` $\\frac{1}{0}$ $$x$$",
    "{{ 7*7 }}{% raw %} =1+1 @SUM(1) -->",
)
