// Processes that Go's runtime makes: by its own instructions, with a descriptor of the child, as vfork does. os.Args[1] is a
// directory; what is printed is the same in each.
package main

// int one(void) { return 1; }
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func said(cmd *exec.Cmd) string {
	text, err := cmd.CombinedOutput()
	return strings.ReplaceAll(fmt.Sprintf("%q %v", text, err), os.Args[1], "DIR")
}

func in(dir string, words ...string) *exec.Cmd {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = dir
	return cmd
}

func worker(sub string, i int) string {
	name := fmt.Sprint("w", i)
	must(os.WriteFile(filepath.Join(sub, name), []byte(name), 0o644))
	return said(in(sub, "cat", name))
}

func main() {
	sub := filepath.Join(os.Args[1], "sub")
	must(os.MkdirAll(sub, 0o755))
	must(os.WriteFile(filepath.Join(sub, "file"), []byte("text\n"), 0o644))
	fmt.Println("Dir", said(in(sub, "/bin/pwd")), said(in(sub, "cat", "file")), said(in(sub+"/missing", "cat")))

	out, err := os.Create(filepath.Join(sub, "out"))
	must(err)
	echo := exec.Command("echo", "to a file")
	echo.Stdout = out
	must(echo.Run())
	must(out.Close())
	from, err := os.Open(filepath.Join(sub, "out"))
	must(err)
	cat := exec.Command("cat")
	cat.Stdin = from
	fmt.Println("Stdout", said(cat))

	must(os.Chdir(sub))
	must(os.Unsetenv("PWD"))
	cwd, err := os.Getwd()
	fmt.Println("working directory", cwd == sub, err, said(exec.Command("/bin/pwd")), said(exec.Command("cat", "file")))

	script := filepath.Join(sub, "script")
	must(os.WriteFile(script, []byte("#!/bin/sh\nread line < file; echo $1 $line; exit 3\n"), 0o755))
	fmt.Println("a program there", said(exec.Command(script, "says")))

	var all sync.WaitGroup
	answers := make([]string, 16*int(C.one()))
	for i := range answers {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			answers[i] = worker(sub, i)
		}(i)
	}
	all.Wait()
	fmt.Println("at once", answers)
}
