// What Go does with the loads of `echo` and `blocked_tasks`: `bench echo`, `bench burst COUNT MILLISECONDS`.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A number of kB from /proc; 0 where there is none.
func memory(name string) (kB int) {
	status, _ := os.ReadFile("/proc/self/status")
	if _, after, found := strings.Cut(string(status), name+":"); found {
		fmt.Sscan(after, &kB)
	}
	return
}

func burst(count int, wait time.Duration) {
	before := memory("VmRSS")
	start := time.Now()
	var all sync.WaitGroup
	for range count {
		all.Add(1)
		go func() {
			defer all.Done()
			time.Sleep(wait)
		}()
	}
	all.Wait()
	taken := time.Since(start)
	fmt.Printf("{\"ms\": %f, \"kB\": %d}\n", float64(taken.Nanoseconds())/1e6, max(0, memory("VmHWM")-before))
}

func echo(connection net.Conn) {
	defer connection.Close()
	buffer := make([]byte, 65536)
	for {
		count, err := connection.Read(buffer)
		if err != nil {
			return
		}
		if _, err := connection.Write(buffer[:count]); err != nil {
			return
		}
	}
}

func main() {
	if os.Args[1] == "burst" {
		count, _ := strconv.Atoi(os.Args[2])
		milliseconds, _ := strconv.ParseFloat(os.Args[3], 64)
		burst(count, time.Duration(milliseconds*float64(time.Millisecond)))
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends with the parent
		os.Exit(0)
	}()
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	for {
		connection, err := listener.Accept() // with TCP_NODELAY, as always in Go
		if err != nil {
			return
		}
		go echo(connection)
	}
}
