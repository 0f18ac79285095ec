// A program of Go's with C in it, so that it is linked dynamically: its runtime makes system calls by its own
// instructions, from threads that handle signals on small stacks. os.Args[1] is a directory of ours.
package main

// int one(void) { return 1; }
import "C"

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Through a connection and back: Go splices from it into a file, and sends a file into it.
func overConnection(dir string) {
	data := bytes.Repeat([]byte("over a connection"), 100000)
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	must(os.WriteFile(from, data, 0o644))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() {
		file, err := os.Open(from)
		must(err)
		conn, err := listener.Accept()
		must(err)
		_, err = io.Copy(conn, file)
		must(err)
		must(conn.Close())
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	must(err)
	file, err := os.Create(to)
	must(err)
	moved, err := io.Copy(file, conn)
	must(err)
	must(file.Close())
	got, err := os.ReadFile(to)
	must(err)
	if int(moved) != len(data) || !bytes.Equal(got, data) {
		panic("not what was sent")
	}
	must(os.Remove(from))
	must(os.Remove(to))
}

func main() {
	dir := os.Args[1]
	overConnection(dir)
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
