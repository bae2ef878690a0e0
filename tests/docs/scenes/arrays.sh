# A program with arrays, which is pid.
cp $SCENES/arrays.py job.py
read pid < <(python job.py 2>/dev/null)
