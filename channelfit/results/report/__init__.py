"""Reports of runs: pages, images, figures for print, tables and lines on a terminal."""
