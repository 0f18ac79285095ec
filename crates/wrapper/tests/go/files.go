// A program of Go's with C in it, so that it is linked dynamically: its runtime makes system calls by its own
// instructions, from threads that handle signals on small stacks. os.Args[1] is a directory of ours.
package main

// int one(void) { return 1; }
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	dir := os.Args[1]
	var workers sync.WaitGroup
	for i := 0; i < 8*int(C.one()); i++ {
		workers.Add(1)
		go func(i int) {
			defer workers.Done()
			for j := 0; j < 50; j++ {
				name := filepath.Join(dir, fmt.Sprint("d", i), fmt.Sprint("f", j))
				must(os.MkdirAll(filepath.Dir(name), 0o755))
				data := bytes.Repeat([]byte{byte(i), byte(j)}, 3000+j)
				must(os.WriteFile(name, data, 0o644))
				got, err := os.ReadFile(name)
				must(err)
				if !bytes.Equal(got, data) {
					panic(name)
				}
				must(os.Rename(name, name+".x"))
			}
		}(i)
	}
	workers.Wait()
	entries := 0
	must(filepath.Walk(dir, func(_ string, _ os.FileInfo, err error) error {
		entries++
		return err
	}))
	fmt.Println("entries", entries)
}
