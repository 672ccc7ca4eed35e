"""What we measure: recipes of runs, grids of cells that resume, pictures, papers reproduced."""
