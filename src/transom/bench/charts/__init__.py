"""Charts as SVG: lines, stacked areas and bars, in the style of this project's pictures."""
