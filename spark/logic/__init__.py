"""The jobs themselves: DataFrame in, DataFrame out."""
