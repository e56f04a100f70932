"""Views and the trees they define. Pure functions of plain data; imports nothing but ids and errors."""
