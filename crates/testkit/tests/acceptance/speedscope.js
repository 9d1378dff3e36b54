// Runs speedscope's own importer on a file and prints what it understood.
// usage: node speedscope.js DIST_DIR FILE
//
// The importer is part of speedscope's bundle, which draws a page when it is
// loaded. So the last statement, which draws, is taken off, and the importer
// (the function that the page calls for a file given by base64) is called.
'use strict'
const fs = require('fs')
const path = require('path')
const vm = require('vm')

const [dist, file] = process.argv.slice(2)
const bundle = fs.readdirSync(dist).find(name => /^speedscope-.*\.js$/.test(name))
let source = fs.readFileSync(path.join(dist, bundle), 'utf8')
const importer = /loadFileFromBase64:\((\w+),(\w+)\)=>\{this\.loadProfile\(\(\)=>(\w+)\(\1,\2\)\)/.exec(source)
const drawing = source.lastIndexOf('console.log(`speedscope v')
if (!importer || drawing < 0) throw new Error('this speedscope is built differently')
source = source.slice(0, drawing) + `globalThis.importer=${importer[3]}})();`

const nothing = () => {}
const element = { style: {}, appendChild: nothing, setAttribute: nothing, addEventListener: nothing, sheet: { insertRule: nothing } }
const window = {
  addEventListener: nothing,
  devicePixelRatio: 1,
  location: { hash: '', href: 'file:///', protocol: 'file:' },
  matchMedia: () => ({ matches: false, addListener: nothing, addEventListener: nothing }),
  localStorage: { getItem: () => null, setItem: nothing },
  navigator: { userAgent: 'node', platform: 'node' },
}
const context = vm.createContext({
  ...window, window, console: new console.Console(process.stderr), atob, btoa, TextDecoder, TextEncoder, Uint8Array, ArrayBuffer, performance,
  setTimeout, clearTimeout, requestAnimationFrame: nothing, URL, URLSearchParams, Worker: class {}, WebAssembly, fetch: nothing,
  document: {
    addEventListener: nothing, createElement: () => element, createTextNode: () => element, head: element, body: element,
    getElementsByTagName: () => [element], querySelector: () => null, documentElement: element,
  },
})
context.self = context
vm.runInContext(source, context, { filename: bundle })

const base64 = fs.readFileSync(file).toString('base64')
context.importer(path.basename(file), base64).then(group => {
  if (!group) throw new Error('speedscope does not know this format')
  const profiles = group.profiles.map(profile => {
    let frames = new Set()
    let depth = 0
    let deepest = 0
    profile.forEachCall(
      node => {
        frames.add(node.frame.name)
        deepest = Math.max(deepest, ++depth)
      },
      () => { depth-- },
    )
    return {
      name: profile.getName(),
      weight: profile.getTotalWeight(),
      unit: profile.getWeightUnit(),
      frames: [...frames],
      deepest,
    }
  })
  console.log(JSON.stringify({ name: group.name, profiles }))
}).catch(error => {
  console.error(error)
  process.exit(1)
})
