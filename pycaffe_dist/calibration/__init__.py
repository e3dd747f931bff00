"""What is measured of the machine at hand: links, matrix products, copies, contention, clocks."""
