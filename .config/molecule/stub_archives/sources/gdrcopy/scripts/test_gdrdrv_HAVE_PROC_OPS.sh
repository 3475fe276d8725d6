echo y
