declare module "*.css" {
  const text: string;
  export default text;
}
declare module "worker-text" {
  const text: string;
  export default text;
}
