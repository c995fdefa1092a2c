"""Closed-form curves fitted to many data sets at once, each data set on its own.

A curve is an expression z(x, y, ..; p) of inputs and parameters. What is compiled for it are its
value, its exact derivatives and their products over the points of a data set; all else, the search
for a start, Levenberg and Marquardt's steps and the errors, is one text for all curves, for
processors (`lanes`) and for GPUs (`cuda_text`).
"""
